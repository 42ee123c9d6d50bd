package outfile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// TestResumeKeepsOnlyRightChunks stops a run after each chunk, and damages its partial file. The next
// run must keep the chunks before the damage, and complete the image.
func TestResumeKeepsOnlyRightChunks(t *testing.T) {
	i := makeImage(t, mixed())
	spoils := []struct {
		name  string
		spoil func(f *os.File, size int64) error
		lost  int64 // maximum number of lost chunks
	}{
		{"nothing", func(*os.File, int64) error { return nil }, 0},
		{"a byte is missing", func(f *os.File, size int64) error { return f.Truncate(max(0, size-1)) }, 1},
		{"extra bytes", func(f *os.File, size int64) error { _, err := f.WriteAt(make([]byte, 3), size); return err }, 0},
		{"extra random bytes", func(f *os.File, size int64) error {
			_, err := f.WriteAt(i.content[:chunkSize+chunkSize/2], size)
			return err
		}, 0},
		{"a wrong byte", func(f *os.File, size int64) error {
			b := make([]byte, 1)
			at := max(0, size-30)
			_, err := f.ReadAt(b, at)
			b[0] ^= 8
			_, werr := f.WriteAt(b, at)
			return errors.Join(err, werr)
		}, 1},
	}
	for _, compression := range compressions {
		for n, s := range spoils {
			if race.Enabled && n%3 != 1 {
				continue
			}
			t.Run(string(compression)+"/"+s.name, func(t *testing.T) {
				for end := int64(1); end <= i.m.Chunks(); end++ {
					to := Target{Path: filepath.Join(t.TempDir(), "out"), Compression: compression}
					w, _ := i.resume(t, to)
					i.append(t, w, end)
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					f, err := os.OpenFile(to.PartialPath(), os.O_RDWR, 0)
					if err != nil {
						t.Fatal(err)
					}
					info, err := f.Stat()
					if err := errors.Join(err, s.spoil(f, info.Size()), f.Close()); err != nil {
						t.Fatal(err)
					}
					w, kept := i.resume(t, to)
					if least := min(int64(len(i.content)), (end-s.lost)*chunkSize); kept < least {
						t.Errorf("%d bytes were kept of %d chunks", kept, end)
					}
					i.append(t, w, i.m.Chunks())
					if err := w.Commit(i.sha512); err != nil {
						t.Fatal(err)
					}
					if got := decompressWithTool(t, to.Path, compression); !bytes.Equal(got, i.content) {
						t.Fatalf("after %d chunks the file differs", end)
					}
				}
			})
		}
	}
}

// TestTruncatedStreamIsDetected decompresses a complete stream, and streams that are truncated after
// each chunk.
func TestTruncatedStreamIsDetected(t *testing.T) {
	i := makeImage(t, mixed())
	for _, compression := range compressions {
		var out bytes.Buffer
		w := NewStreamWriter(&out, compression, int64(len(i.content)))
		i.append(t, w, i.m.Chunks())
		cut := bytes.Clone(out.Bytes())
		if err := w.Commit(i.sha512); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := decompressWithTool(t, path, compression); !bytes.Equal(got, i.content) {
			t.Errorf("%s: the bytes differ", compression)
		}
		if compression == None {
			continue
		}
		if err := os.WriteFile(path, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(string(compression), "-t", "-q", path).Run(); err == nil {
			t.Errorf("%s: the truncation is not detected", compression)
		}
	}
}

// TestCommitErrors checks that no file exists after an error of Commit.
func TestCommitErrors(t *testing.T) {
	i := makeImage(t, mixed())
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	wrong := ident.SHA512.Digest(ident.SHA512.New())
	w, _ := i.resume(t, to)
	i.append(t, w, 2)
	if err := w.Commit(i.sha512); err == nil {
		t.Error("Commit accepted half of the image")
	}
	i.append(t, w, i.m.Chunks())
	if err := w.AppendChunk(nil); err == nil {
		t.Error("AppendChunk accepted a chunk after the last one")
	}
	var checksum *disk.ChecksumError
	if err := w.Commit(wrong); !errors.As(err, &checksum) {
		t.Errorf("error %v", err)
	}
	if names := list(t, to); len(names) > 0 {
		t.Errorf("files left: %v", names)
	}

	w, _ = i.resume(t, to)
	i.append(t, w, i.m.Chunks())
	if err := os.WriteFile(to.Path, nil, 0o600); err != nil { // another process creates the file in the meantime
		t.Fatal(err)
	}
	var exists *ExistsError
	if err := w.Commit(i.sha512); !errors.As(err, &exists) {
		t.Errorf("error %v", err)
	}
	w.Close()
	to.Replace = true
	w, kept := i.resume(t, to)
	if kept != int64(len(i.content)) {
		t.Errorf("a partial file of %d bytes is left", kept)
	}
	if err := w.Commit(i.sha512); err != nil {
		t.Error(err)
	}
	if names := list(t, to); len(names) != 1 {
		t.Errorf("files left: %v", names)
	}
}

// TestZerosBecomeHoles checks that zeros become holes, even where older bytes were.
func TestZerosBecomeHoles(t *testing.T) {
	content := make([]byte, 16*chunkSize)
	copy(content[10*chunkSize:], "parrot")
	i := makeImage(t, content)
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	if err := os.WriteFile(to.PartialPath(), bytes.Repeat([]byte{1}, 8*chunkSize), 0o600); err != nil {
		t.Fatal(err)
	}
	w, kept := i.resume(t, to)
	if kept != 0 {
		t.Errorf("%d older bytes remain", kept)
	}
	i.append(t, w, i.m.Chunks())
	if err := w.Commit(i.sha512); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(to.Path, &st); err != nil || st.Size != int64(len(content)) || st.Blocks*512 > 2*chunkSize {
		t.Errorf("the file has %d bytes and uses %d, error %v", st.Size, st.Blocks*512, err)
	}
}

// TestSecondWriterIsRefused opens two writers for one file, and a third one after the first has
// finished.
func TestSecondWriterIsRefused(t *testing.T) {
	i := makeImage(t, mixed())
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	w, _ := i.resume(t, to)
	if _, err := Create(to, 512); err == nil {
		t.Error("a second writer of the same file was opened")
	}
	i.append(t, w, i.m.Chunks())
	if err := w.Commit(i.sha512); err != nil {
		t.Fatal(err)
	}
	other := Target{Path: to.Path, Replace: true}
	again, kept := i.resume(t, other) // while the first writer is still open
	if kept != 0 {
		t.Errorf("%d bytes already exist", kept)
	}
	if err := errors.Join(again.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if names := list(t, to); len(names) != 1 {
		t.Errorf("files left: %v", names)
	}
}

// TestInvalidTargets uses targets that are not regular files.
func TestInvalidTargets(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.Mkdir(path("folder"), 0o755), unix.Mkfifo(path("pipe"), 0o600), unix.Mkfifo(path("a.image-part"), 0o600),
		os.Symlink(path("nowhere"), path("link")), os.Symlink(path("elsewhere"), path("b.image-part")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"folder", "pipe", "a", "b", "folder/none/c"} {
		if w, err := Create(Target{Path: path(name), Replace: true}, 512); err == nil {
			w.Close()
			t.Errorf("an image was written to %s", name)
		}
	}
	if _, err := Create(Target{Path: path("link")}, 512); err == nil {
		t.Error("a link was replaced without Replace")
	}
	if _, err := os.Lstat(path("elsewhere")); err == nil {
		t.Error("a link was followed")
	}
}

func FuzzDecompress(f *testing.F) {
	for _, p := range []Compression{Gzip, Zstd} {
		var out bytes.Buffer
		pack := newChunkCompressor(streamSink{nopCloser{&out}}, p)
		if err := errors.Join(pack.Put(bytes.Repeat([]byte("parrots "), chunkSize/8)), pack.PutZeros(chunkSize)); err != nil {
			f.Fatal(err)
		}
		f.Add(p == Zstd, out.Bytes())
	}
	f.Fuzz(func(t *testing.T, isZstd bool, data []byte) {
		p := Gzip
		if isZstd {
			p = Zstd
		}
		u := newChunkDecompressor(bytes.NewReader(data), p)
		chunk := make([]byte, chunkSize)
		for at := int64(0); ; {
			took, err := u.next(chunk)
			if err != nil {
				return
			}
			if at += took; took <= 0 || at > int64(len(data)) {
				t.Fatalf("%d compressed bytes at %d of %d", took, at, len(data))
			}
		}
	})
}
