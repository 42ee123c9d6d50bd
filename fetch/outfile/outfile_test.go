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
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// TestResume ends a run behind each chunk and spoils what it left in some way. The next
// one keeps what is right before that, and always ends with the image.
func TestResume(t *testing.T) {
	i := makeImage(t, mixed())
	spoils := []struct {
		name  string
		spoil func(f *os.File, size int64) error
		lost  int64 // chunks, at most
	}{
		{"nothing", func(*os.File, int64) error { return nil }, 0},
		{"a byte is missing", func(f *os.File, size int64) error { return f.Truncate(max(0, size-1)) }, 1},
		{"something follows", func(f *os.File, size int64) error { _, err := f.WriteAt(make([]byte, 3), size); return err }, 0},
		{"noise follows", func(f *os.File, size int64) error {
			_, err := f.WriteAt(i.content[:chunkSize+chunkSize/2], size)
			return err
		}, 0},
		{"a byte is wrong", func(f *os.File, size int64) error {
			b := make([]byte, 1)
			at := max(0, size-30)
			_, err := f.ReadAt(b, at)
			b[0] ^= 8
			_, werr := f.WriteAt(b, at)
			return errors.Join(err, werr)
		}, 1},
	}
	for _, packing := range packings {
		for n, s := range spoils {
			if race.Enabled && n%3 != 1 {
				continue
			}
			t.Run(string(packing)+"/"+s.name, func(t *testing.T) {
				for end := int64(1); end <= i.m.Chunks(); end++ {
					to := Target{Path: filepath.Join(t.TempDir(), "out"), Packing: packing}
					w, _ := i.begin(t, to)
					i.put(t, w, end)
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
					w, kept := i.begin(t, to)
					if least := min(int64(len(i.content)), (end-s.lost)*chunkSize); kept < least {
						t.Errorf("%d bytes stay of %d chunks", kept, end)
					}
					i.put(t, w, i.m.Chunks())
					if err := w.Commit(i.sha512); err != nil {
						t.Fatal(err)
					}
					if got := unpack(t, to.Path, packing); !bytes.Equal(got, i.content) {
						t.Fatalf("after %d chunks the file is another one", end)
					}
				}
			})
		}
	}
}

// TestStream unpacks what goes into a stream, and cuts it wherever a chunk ends.
func TestStream(t *testing.T) {
	i := makeImage(t, mixed())
	for _, packing := range packings {
		var out bytes.Buffer
		w := Stream(&out, packing, int64(len(i.content)))
		i.put(t, w, i.m.Chunks())
		cut := bytes.Clone(out.Bytes())
		if err := w.Commit(i.sha512); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := unpack(t, path, packing); !bytes.Equal(got, i.content) {
			t.Errorf("%s: other bytes come out", packing)
		}
		if packing == Plain {
			continue
		}
		if err := os.WriteFile(path, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(string(packing), "-t", "-q", path).Run(); err == nil {
			t.Errorf("%s: nobody notices that the end is missing", packing)
		}
	}
}

// TestCommitRefuses has something wrong, after which there is no file.
func TestCommitRefuses(t *testing.T) {
	i := makeImage(t, mixed())
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	wrong := disk.SHA512.Digest(disk.SHA512.New())
	w, _ := i.begin(t, to)
	i.put(t, w, 2)
	if err := w.Commit(i.sha512); err == nil {
		t.Error("half of the image is committed")
	}
	i.put(t, w, i.m.Chunks())
	if err := w.Put(nil); err == nil {
		t.Error("there is a chunk behind the last one")
	}
	var checksum *disk.ChecksumError
	if err := w.Commit(wrong); !errors.As(err, &checksum) {
		t.Errorf("error %v", err)
	}
	if names := list(t, to); len(names) > 0 {
		t.Errorf("%v are left", names)
	}

	w, _ = i.begin(t, to)
	i.put(t, w, i.m.Chunks())
	if err := os.WriteFile(to.Path, nil, 0o600); err != nil { // it comes meanwhile
		t.Fatal(err)
	}
	var exists *ExistsError
	if err := w.Commit(i.sha512); !errors.As(err, &exists) {
		t.Errorf("error %v", err)
	}
	w.Close()
	to.Replace = true
	w, kept := i.begin(t, to)
	if kept != int64(len(i.content)) {
		t.Errorf("%d bytes are left to replace it with", kept)
	}
	if err := w.Commit(i.sha512); err != nil {
		t.Error(err)
	}
	if names := list(t, to); len(names) != 1 {
		t.Errorf("%v are left", names)
	}
}

// TestSparse looks for the holes, and for what was in their place before.
func TestSparse(t *testing.T) {
	content := make([]byte, 16*chunkSize)
	copy(content[10*chunkSize:], "parrot")
	i := makeImage(t, content)
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	if err := os.WriteFile(to.PartialPath(), bytes.Repeat([]byte{1}, 8*chunkSize), 0o600); err != nil {
		t.Fatal(err)
	}
	w, kept := i.begin(t, to)
	if kept != 0 {
		t.Errorf("%d bytes of something else stay", kept)
	}
	i.put(t, w, i.m.Chunks())
	if err := w.Commit(i.sha512); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(to.Path, &st); err != nil || st.Size != int64(len(content)) || st.Blocks*512 > 2*chunkSize {
		t.Errorf("it has %d bytes and takes %d, error %v", st.Size, st.Blocks*512, err)
	}
}

// TestOneWriter has two for the same file, one after the other finished too.
func TestOneWriter(t *testing.T) {
	i := makeImage(t, mixed())
	to := Target{Path: filepath.Join(t.TempDir(), "out")}
	w, _ := i.begin(t, to)
	if _, err := Create(to, 512); err == nil {
		t.Error("two write the same file")
	}
	i.put(t, w, i.m.Chunks())
	if err := w.Commit(i.sha512); err != nil {
		t.Fatal(err)
	}
	other := Target{Path: to.Path, Replace: true}
	again, kept := i.begin(t, other) // while the first one has its file open
	if kept != 0 {
		t.Errorf("%d bytes are there already", kept)
	}
	if err := errors.Join(again.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if names := list(t, to); len(names) != 1 {
		t.Errorf("%v are left", names)
	}
}

// TestOddPlaces has something at the names that no image goes to.
func TestOddPlaces(t *testing.T) {
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
			t.Errorf("an image is written to %s", name)
		}
	}
	if _, err := Create(Target{Path: path("link")}, 512); err == nil {
		t.Error("a link is replaced unasked")
	}
	if _, err := os.Lstat(path("elsewhere")); err == nil {
		t.Error("a link was followed")
	}
}

func FuzzUnpack(f *testing.F) {
	for _, p := range []Packing{Gzip, Zstd} {
		var out bytes.Buffer
		pack := newPacker(&out, p)
		if err := errors.Join(pack.Put([]byte("parrot")), pack.PutZeros(chunkSize)); err != nil {
			f.Fatal(err)
		}
		f.Add(p == Zstd, out.Bytes())
	}
	f.Fuzz(func(t *testing.T, isZstd bool, data []byte) {
		p := Gzip
		if isZstd {
			p = Zstd
		}
		u := newUnpacker(bytes.NewReader(data), p)
		into := make([]byte, chunkSize)
		for at := int64(0); ; {
			chunk, took, err := u.next(into)
			if err != nil {
				return
			}
			if at += took; len(chunk) > len(into) || took <= 0 || at > int64(len(data)) {
				t.Fatalf("%d bytes of %d, %d packed", len(chunk), len(into), took)
			}
		}
	})
}
