package caibx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

// loadTable returns the Table of an index.
func loadTable(t testing.TB, index []byte, l Limits) (*Table, error) {
	t.Helper()
	f, err := TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(f, bytes.NewReader(index), l)
	if err == nil {
		t.Cleanup(func() {
			if err := table.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return table, err
}

func TestTableFindsEachItem(t *testing.T) {
	for _, name := range []string{"small-new.raw.caibx", "repeat.raw.caibx", "sparse-new.raw.caibx", "one-byte.raw.caibx", "empty.raw.caibx", "noise.blocks.caibx"} {
		index := fixture(t, name)
		h, items, err := readAll(index, limits)
		if err != nil {
			t.Fatal(err)
		}
		table, err := loadTable(t, index, limits)
		if err != nil {
			t.Fatal(err)
		}
		if table.Header() != h || table.Len() != int64(len(items)) || !bytes.Equal(table.Index(), index) {
			t.Errorf("%s: the table has another header, number of items or index", name)
		}
		first := map[ID]int64{}
		for n, want := range items {
			if _, known := first[want.ID]; !known {
				first[want.ID] = int64(n)
			}
			if got := table.Item(int64(n)); got != want {
				t.Errorf("%s: item %d is %+v, want %+v", name, n, got, want)
			}
			if got, found := table.Find(want.ID); !found || got != first[want.ID] {
				t.Errorf("%s: the id of item %d is found at %d, %v", name, n, got, found)
			}
			if table.ImageSize() != items[len(items)-1].End() {
				t.Errorf("%s: the image has %d bytes", name, table.ImageSize())
			}
		}
		if _, found := table.Find(ID{1, 2, 3}); found {
			t.Errorf("%s: an id is found that is not there", name)
		}
	}
}

func TestTableRejectsDamagedIndexes(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.caibx")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		index, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _, want := readAll(index, limits)
		if _, err := loadTable(t, index, limits); (err == nil) != (want == nil) || err != nil && err.Error() != want.Error() {
			t.Errorf("%s: error %v, want %v", file, err, want)
		}
	}
	if _, err := loadTable(t, fixture(t, "repeat.raw.caibx"), Limits{1013333, 1 << 14}); err == nil || !strings.Contains(err.Error(), "more than 62 items") {
		t.Errorf("an index with too many items: error %v", err)
	}
}

func TestTableReturnsReadErrors(t *testing.T) {
	f, err := TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the connection broke")
	if _, err := NewTable(f, iotest.ErrReader(broken), limits); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// TestCatchFaults takes the pages of a table away, as a disk does that cannot read them.
func TestCatchFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(f, bytes.NewReader(fixture(t, "small-new.raw.caibx")), limits)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	err = CatchFaults(func() error {
		table.Find(ID{})
		return nil
	})
	if !errors.Is(err, unix.EIO) {
		t.Errorf("got error %v, want %v", err, unix.EIO)
	}
	other := errors.New("another error")
	if err := CatchFaults(func() error { return other }); err != other {
		t.Errorf("got error %v, want %v", err, other)
	}
	defer func() {
		if recover() != any("a bug") {
			t.Error("another panic was caught")
		}
	}()
	_ = CatchFaults(func() error { panic("a bug") })
}
