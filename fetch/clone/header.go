package clone

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// HeaderSize is the number of bytes by which encryption enlarges a disk, as in Longhorn.
const HeaderSize = luks.MaxOffset

// createHeader creates a new key and the header of an encrypted disk of size bytes. It returns the
// header in an anonymous file.
func createHeader(ctx context.Context, s *secret, size int64) (_ *os.File, _ *luks.Payload, err error) {
	f, err := memoryFile(size)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	key := make([]byte, s.keyBits/8)
	defer clear(key)
	rand.Read(key)
	pipe, err := pipeWith(key)
	if err != nil {
		return nil, nil, err
	}
	defer pipe.Close()
	out, err := cryptsetup(ctx, s.passphrase, []*os.File{f, pipe}, s.formatArgs()...)
	if err != nil {
		return nil, nil, fmt.Errorf("create a LUKS header: %w", err)
	}
	clear(out)
	h, err := luks.Read(f, size)
	if refused, ok := errors.AsType[*luks.HeaderError](err); ok {
		// The parameters in the secret, or the defaults of cryptsetup on a large machine, exceed the
		// limits of package luks.
		return nil, nil, fetch.Errorf(fetch.BadConfig, "cryptsetup created a header that this program would not open: %w: set %s and %s in the secret to lower values", refused, fileIterations, fileMemory)
	}
	if err != nil {
		return nil, nil, err
	}
	if h.Offset != HeaderSize {
		return nil, nil, fmt.Errorf("cryptsetup created a header of %d bytes, not %d", h.Offset, int64(HeaderSize))
	}
	p, err := h.Open(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cryptsetup created a header: %w", err)
	}
	return f, p, nil
}

// formatArgs returns the arguments for a header like the headers of Longhorn. Sectors have 512 bytes,
// because the size of a disk need not be a multiple of a larger sector.
func (s *secret) formatArgs() []string {
	args := []string{
		"luksFormat", "--batch-mode", "--type=luks2", "--cipher=" + cipher, "--hash=" + s.hash,
		"--key-size=" + strconv.Itoa(s.keyBits), "--pbkdf=" + s.pbkdf, "--sector-size=512",
		"--offset=" + strconv.Itoa(HeaderSize/512), "--key-file=-", "--volume-key-file=" + fdPath(1),
	}
	if s.iterations > 0 {
		args = append(args, "--pbkdf-force-iterations="+strconv.FormatInt(s.iterations, 10))
	}
	if s.memory > 0 && s.pbkdf != "pbkdf2" {
		args = append(args, "--pbkdf-memory="+strconv.FormatInt(s.memory, 10))
	}
	return append(args, fdPath(0))
}

// readHeader opens the header of an encrypted disk of size bytes. It uses a copy of the header, so
// that cryptsetup reads the same bytes that package luks accepted, even if the disk changes.
func readHeader(ctx context.Context, disk io.ReaderAt, size int64, passphrase []byte) (*luks.Header, *luks.Payload, error) {
	f, err := memoryFile(size)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(disk, 0, min(size, HeaderSize))); err != nil {
		return nil, nil, fmt.Errorf("copy LUKS header: %w", err)
	}
	return openHeader(ctx, f, size, passphrase)
}

// openHeader opens the header in f. The header belongs to a disk of size bytes.
func openHeader(ctx context.Context, f *os.File, size int64, passphrase []byte) (*luks.Header, *luks.Payload, error) {
	h, err := luks.Read(f, size)
	if err != nil {
		return nil, nil, err
	}
	out, err := cryptsetup(ctx, passphrase, []*os.File{f},
		"luksDump", "--batch-mode", "--type=luks2", "--dump-volume-key", "--key-file=-", fdPath(0))
	if err != nil {
		return nil, nil, fmt.Errorf("open the LUKS header: %w", err)
	}
	defer clear(out)
	key := parseDumpedKey(out, h.KeySize)
	defer clear(key)
	p, err := h.Open(key)
	if err != nil {
		return nil, nil, fmt.Errorf("open the LUKS header: %w", err)
	}
	return h, p, nil
}

// parseDumpedKey finds the key in the output of cryptsetup. The output ends with "MK dump:" and the
// bytes in hex, 16 per line. The caller must verify the key.
func parseDumpedKey(out []byte, size int) []byte {
	_, dump, _ := bytes.Cut(out, []byte("dump:"))
	key := make([]byte, 0, size)
	for _, pair := range bytes.Fields(dump) {
		var b [1]byte
		if n, err := hex.Decode(b[:], pair[:min(len(pair), 2)]); err != nil || n != 1 || len(pair) != 2 || len(key) == size {
			break
		}
		key = append(key, b[0])
	}
	return key
}
