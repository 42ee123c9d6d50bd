package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// fileSource reads a local file.
type fileSource struct {
	client *Client
	path   string
}

// newFileSource returns the source for an address.
func (t *transfer) newFileSource(a address) (source, error) {
	return &fileSource{t.client, filepath.Clean(a.url.Path)}, nil
}

// findRoot returns the allowed folder that contains path, and the path relative to this folder. root
// is empty if every path is allowed.
func (c *Client) findRoot(path string) (root, rel string, err error) {
	if c.AllowAnyFile {
		return "", "", nil
	}
	for _, root := range c.FileRoots {
		rel, err := filepath.Rel(root, path)
		if err == nil && filepath.IsLocal(rel) {
			return root, rel, nil
		}
	}
	if len(c.FileRoots) == 0 {
		return "", "", Errorf(BadConfig, "%s is not allowed: allow its folder with --allow-file-root", path)
	}
	return "", "", Errorf(BadConfig, "%s is not below an allowed folder (%s): allow its folder with --allow-file-root", path, strings.Join(c.FileRoots, ", "))
}

// openLocal opens a local path, if FileRoots or AllowAnyFile permits it. If every path is allowed, it calls anywhere(path).
// Otherwise it calls below(r, rel): r is the allowed folder, and rel is relative to it. An os.Root rejects links that leave it.
func openLocal[T any](c *Client, path string, anywhere func(path string) (T, error), below func(r *os.Root, path string) (T, error)) (opened T, err error) {
	path = filepath.Clean(path)
	root, rel, err := c.findRoot(path)
	if err != nil {
		return opened, err
	}
	if root == "" {
		opened, err = anywhere(path)
		return opened, ClassifyFileError(err)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return opened, ClassifyFileError(err)
	}
	defer r.Close()
	opened, err = below(r, rel)
	var at *fs.PathError
	if errors.As(err, &at) {
		at.Op, at.Path = "open", path // the path was relative to the root
	}
	return opened, ClassifyFileError(err)
}

// OpenFolder opens a local folder for reading and writing, if FileRoots or AllowAnyFile permits it.
// Symbolic links that leave the folder are rejected.
func (c *Client) OpenFolder(path string) (*os.Root, error) {
	return openLocal(c, path, os.OpenRoot, (*os.Root).OpenRoot)
}

// OpenFile opens a local file or device, if FileRoots or AllowAnyFile permits it. It does not block
// on a pipe or a device.
func (c *Client) OpenFile(path string, flags int) (*os.File, error) {
	flags |= os.O_RDONLY | syscall.O_NONBLOCK
	return openLocal(c, path, func(path string) (*os.File, error) { return os.OpenFile(path, flags, 0) },
		func(r *os.Root, path string) (*os.File, error) { return r.OpenFile(path, flags, 0) })
}

// Stat returns the FileInfo of the file that OpenFile would open.
func (c *Client) Stat(path string) (os.FileInfo, error) {
	return openLocal(c, path, os.Stat, (*os.Root).Stat)
}

// get opens the file again for each request. The size, modification time and inode together identify
// a version of the file.
func (s *fileSource) get(_ context.Context, q rangeRequest) (*response, error) {
	f, err := s.client.OpenFile(s.path, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = Errorf(BadSource, "%s is not a regular file", s.path)
	}
	tag := ""
	if err == nil {
		tag = fileVersion(info)
		if q.offset > 0 && (q.validator != "" && q.validator != tag || q.total >= 0 && q.total != info.Size()) {
			err = errChanged
		}
	}
	if err == nil {
		err = PrepareChangeDetection(f)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, errChanged) {
			return nil, err
		}
		return nil, ClassifyFileError(err)
	}
	end := info.Size()
	if q.end > 0 {
		end = min(end, q.end)
	}
	body := &sparseBody{f: f, offset: q.offset, size: end, tag: tag}
	return &response{body: body, start: q.offset, total: info.Size(), delimited: true, etag: tag}, nil
}

// PrepareChangeDetection makes sure that every later write to the regular file f changes its
// modification time. A write through a memory mapping changes it only if the page was clean before,
// so PrepareChangeDetection writes all dirty pages. Call it before you read the modification time.
func PrepareChangeDetection(f *os.File) error {
	err := f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EROFS) {
		return nil // a read-only file system
	}
	return err
}

func fileVersion(info fs.FileInfo) string {
	return fmt.Sprintf(`"%x-%x-%x"`, info.Size(), info.ModTime().UnixNano(), info.Sys().(*syscall.Stat_t).Ino)
}

// ClassifyFileError returns an *Error for a local file error. The class is Refused if the file is
// missing or permission is denied, because a later attempt may succeed.
func ClassifyFileError(err error) error {
	var known *Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &Error{Class: NoSpace, Err: err}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return &Error{Class: Refused, Err: err}
	case leavesRoot(err):
		return &Error{Class: BadConfig, Err: err}
	}
	return &Error{Class: Network, Err: err}
}

// leavesRoot reports whether err is the error of an os.Root for a link that leaves the root. Package
// os does not export this error. All other errors with a path are errors of the system, of a closed
// file or of a deadline.
func leavesRoot(err error) bool {
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isLink := errors.AsType[*os.LinkError](err)
	_, isSystem := errors.AsType[syscall.Errno](err)
	return (isPath || isLink) && !isSystem && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// sparseBody reads a file, and returns zeros for its holes without reading them.
type sparseBody struct {
	f              *os.File
	offset, size   int64
	tag            string
	data, dataEnds int64 // the next data extent, at or after offset
}

func (b *sparseBody) Read(p []byte) (int, error) {
	if b.offset >= b.size {
		return 0, io.EOF
	}
	if b.offset >= b.dataEnds {
		b.data, b.dataEnds = NextExtent(b.f, b.offset, b.size)
	}
	n, err := b.readNext(p[:min(int64(len(p)), b.size-b.offset)])
	if err == nil && b.offset+int64(n) >= b.size {
		// Check before the last bytes are returned: otherwise a consumer would accept a mix of two
		// versions as complete.
		err = b.unchanged()
	}
	if err != nil {
		return 0, err
	}
	b.offset += int64(n)
	return n, nil
}

func (b *sparseBody) readNext(p []byte) (int, error) {
	if b.offset < b.data {
		p = p[:min(int64(len(p)), b.data-b.offset)]
		clear(p)
		return len(p), nil
	}
	n, err := b.f.ReadAt(p[:min(int64(len(p)), b.dataEnds-b.offset)], b.offset)
	if n > 0 {
		return n, nil // the next read returns the error again
	}
	if err == io.EOF {
		err = Errorf(Dropped, "the file was truncated while it was read")
	}
	return 0, err
}

func (b *sparseBody) unchanged() error {
	info, err := b.f.Stat()
	if err == nil && fileVersion(info) != b.tag {
		err = Errorf(Dropped, "the file changed while it was read")
	}
	return err
}

// NextExtent returns the next data extent at or after offset of a file of size bytes, and (size, size) if there is
// none. On a file system without holes, all bytes are data.
func NextExtent(f *os.File, offset, size int64) (data, ends int64) {
	data, err := f.Seek(offset, unix.SEEK_DATA)
	if errors.Is(err, syscall.ENXIO) {
		return size, size
	}
	if err != nil {
		return offset, size
	}
	if ends, err = f.Seek(data, unix.SEEK_HOLE); err != nil {
		ends = size
	}
	return min(data, size), min(ends, size)
}

// DataSize returns the length of all chunks of a file that contain data, for disk.PartSource. It is at least 1, because
// 0 means unknown. next returns the next data extent at or after offset, or io.EOF if there is none.
func DataSize(next func(offset int64) (start, end int64, err error)) (int64, error) {
	chunks, counted := int64(0), int64(0) // counted: the index of the next chunk to examine
	for {
		start, end, err := next(counted * disk.ChunkSize)
		if errors.Is(err, io.EOF) {
			return max(1, chunks*disk.ChunkSize), nil
		}
		if err != nil {
			return 0, err
		}
		after := (end + disk.ChunkSize - 1) / disk.ChunkSize
		chunks += after - start/disk.ChunkSize
		counted = after
	}
}

// Close closes the file.
func (b *sparseBody) Close() error { return b.f.Close() }
