package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// uncached opens a new file with data. Only the pages of the given spans are in the page cache.
func uncached(t *testing.T, data []byte, read ...Span) *File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = dropCache(f)
	}
	if err == nil {
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
	}
	for _, s := range read {
		if err == nil {
			_, err = f.ReadAt(make([]byte, s.To-s.From), s.From)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// pagesInCache returns the indexes of the pages of f that are in the page cache.
func pagesInCache(f *File) (pages []int64) {
	for i, b := range f.pages.residency(Span{0, f.Size()}).pages {
		if b&1 == 1 {
			pages = append(pages, int64(i))
		}
	}
	return pages
}

// TestPrefetchKeepsOtherPages checks that pages that were cached before stay in the page
// cache, and that the pages of Prefetch are dropped.
func TestPrefetchKeepsOtherPages(t *testing.T) {
	page := int64(os.Getpagesize())
	data := make([]byte, 64*page)
	copy(data, randomBlock())
	f := uncached(t, data, Span{4 * page, 6 * page}, Span{40 * page, 41 * page})
	before := pagesInCache(f)
	if len(before) != 3 {
		t.Fatalf("pages %v are cached, want 3 pages: the file system shares its page cache with another", before)
	}
	f.Prefetch([]Span{{3 * page, 8 * page}, {10 * page, 11*page + 1}, {39 * page, 42 * page}, {63 * page, 99 * page}})
	for _, at := range []int64{3, 10, 39, 63} {
		got := make([]byte, page)
		if _, err := f.ReadAt(got, at*page); err != nil || !bytes.Equal(got, data[at*page:][:page]) {
			t.Errorf("page %d has wrong bytes, error %v", at, err)
		}
	}
	if got := len(pagesInCache(f)); got != 5+2+3+1 {
		t.Errorf("%d pages are cached while they are read, want the prefetched ones: %v", got, pagesInCache(f))
	}
	f.pages.drop(4 * page)
	if got := len(pagesInCache(f)); got != 3+4 {
		t.Errorf("%d pages are cached, want the three, and four of the prefetched ones: %v", got, pagesInCache(f))
	}
	f.pages.release()
	if after := pagesInCache(f); len(after) != len(before) || after[0] != before[0] || after[2] != before[2] {
		t.Errorf("pages %v are cached afterwards, want %v", after, before)
	}
	f.Prefetch([]Span{{99 * page, 100 * page}}) // after the end of the file: no effect
	f.Prefetch(nil)
}

func TestFileDetectsModification(t *testing.T) {
	f := uncached(t, make([]byte, 512))
	if err := f.Unchanged(); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(f.f.Name(), 100); err != nil {
		t.Fatal(err)
	}
	if err := f.Unchanged(); !errors.Is(err, ErrModified) || f.Size() != 512 {
		t.Errorf("error is %v, size %d", err, f.Size())
	}
}

// TestOpenReplicaStaysBelowReplicas checks that OpenReplica opens only folders directly below
// replicas.
func TestOpenReplicaStaysBelowReplicas(t *testing.T) {
	d := newDisk(t)
	if names, err := d.Replicas(); len(names) > 0 || err != nil {
		t.Errorf("without the folder: %v, error %v", names, err)
	}
	folder := filepath.Join(d.Path(), replicaFolder)
	for _, name := range []string{"v-00000002", "v-00000001"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("v-00000001", filepath.Join(folder, "v-00000003")), os.WriteFile(filepath.Join(folder, "v-00000004"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	names, err := d.Replicas()
	if err != nil || len(names) != 2 || names[0] != "v-00000001" || names[1] != "v-00000002" {
		t.Errorf("replicas are %v, error %v", names, err)
	}
	for _, name := range []string{"", ".", "..", "/", "v-00000003", "v-00000004", "v-00000005", "../" + imagesFolder, "v-00000001/."} {
		if r, err := d.OpenReplica(name); err == nil {
			t.Errorf("%q was opened", name)
			r.Close()
		}
	}
	r, err := d.OpenReplica("v-00000001")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, name := range []string{"../v-00000002", "../../" + identityFile, "/etc/passwd", "."} {
		if _, err := r.Read(name); err == nil {
			t.Errorf("%q was read", name)
		}
		if f, err := r.Open(name); err == nil {
			t.Errorf("%q was opened", name)
			f.Close()
		}
	}
}
