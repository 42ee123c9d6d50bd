package assemble

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

var small = caibx.Header{Sizes: caibx.Sizes{Min: 1 << 10, Avg: 4 << 10, Max: 16 << 10}}

// tableOf returns the table of an index with the items that add appends.
func tableOf(t testing.TB, h caibx.Header, add func(append func(length int64, id caibx.ID))) *caibx.Table {
	t.Helper()
	f, err := caibx.TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	buffered := bufio.NewWriterSize(f, 1<<20)
	w, err := caibx.NewWriter(buffered, h)
	if err != nil {
		t.Fatal(err)
	}
	add(func(length int64, id caibx.ID) { err = errors.Join(err, w.Append(length, id)) })
	if err := errors.Join(err, w.Close(), buffered.Flush()); err != nil {
		t.Fatal(err)
	}
	table, err := caibx.NewTable(f, nil, caibx.Limits{Image: maxImage, Chunk: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// TestFewZeroIDsAreComputed has an index in which each length occurs twice in a row. To compute the id of zeros for each
// of them would hash 512 GiB, and remember 32,768 ids.
func TestFewZeroIDsAreComputed(t *testing.T) {
	index := tableOf(t, caibx.Header{Sizes: caibx.Sizes{Min: 1, Avg: 1 << 20, Max: 16 << 20}}, func(add func(int64, caibx.ID)) {
		for n := range int64(1 << 15) {
			id := caibx.ID{byte(n), byte(n >> 8), byte(n >> 16)}
			add(16<<20-n-1, id)
			add(16<<20-n-1, id)
		}
	})
	l := newItems(index, nil)
	s, err := (&Plan{list: l}).Survey(t.Context(), 0)
	if err != nil || s.Missing != s.Size/2 || len(l.zeroIDs) > maxZeroIDs+2 {
		t.Errorf("survey %+v, error %v, %d ids of zeros", s, err, len(l.zeroIDs))
	}
}

// TestRunsOfZerosWithAnyLength has chunks of zeros that are not of the greatest length.
func TestRunsOfZerosWithAnyLength(t *testing.T) {
	index := tableOf(t, small, func(add func(int64, caibx.ID)) {
		for _, length := range []int64{3000, 3000, 3000, 16 << 10, 5000, 5000, 1 << 10} {
			add(length, small.Digest.ZeroID(length))
		}
	})
	// Whether the first chunk of a run is zeros is not known yet.
	if s, err := ByIndexes(index).Survey(t.Context(), 0); err != nil || s.Missing != 3000+5000 {
		t.Errorf("survey %+v, error %v", s, err)
	}
}

var largeItems = flag.Int64("delta.items", 1<<18, "number of chunks of the index of TestLargeIndex; 67108864 for 4 TiB in chunks of 64 KiB")

// TestLargeIndex opens the index of an image, and surveys it with a seed that has three quarters of its chunks. The memory
// does not depend on their number.
func TestLargeIndex(t *testing.T) {
	part, err := newDisk(t).OpenPart(t.Context(), ident.ID{Name: "parrot", UUID: "00000001"}, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	const chunk = 64 << 10
	h := caibx.Header{Sizes: caibx.Blocks(chunk)}
	write := func(to io.Writer, changed func(n int64) bool) error {
		buffered := bufio.NewWriterSize(to, 1<<20)
		w, err := caibx.NewWriter(buffered, h)
		zero := h.Digest.ZeroID(chunk)
		for n := range *largeItems {
			id := zero // each fourth chunk is one of zeros, each eighth is one that repeats
			switch {
			case n%8 == 1:
				id = caibx.ID{1}
			case n%4 != 0:
				binary.LittleEndian.PutUint64(id[:], uint64(n)*0x9e3779b97f4a7c15)
				if changed(n) {
					id[31] ^= 1
				}
			}
			err = errors.Join(err, w.Append(chunk, id))
		}
		return errors.Join(err, w.Close(), buffered.Flush())
	}
	seedIndex, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := write(seedIndex, func(int64) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := seedIndex.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	missing := int64(0)
	if err := part.StoreIndex(func(f *os.File) error {
		return write(f, func(n int64) bool {
			changed := n%16 == 3
			if changed {
				missing += chunk
			}
			return changed
		})
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d chunks, %.1f TiB: both indexes were written in %v", *largeItems, float64(*largeItems)*chunk/(1<<40), time.Since(begin))

	before := memoryInUse(t)
	begin = time.Now()
	f, err := part.Index()
	if err != nil {
		t.Fatal(err)
	}
	limits := caibx.Limits{Image: maxImage, Chunk: minMeanItem}
	index, err := newTable(f, limits, part.TempFile)
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close()
	table, err := newTable(seedIndex, limits, part.TempFile)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	opened := time.Since(begin)
	begin = time.Now()
	survey, err := ByIndexes(index, table).Survey(t.Context(), 0)
	if err != nil || survey.Missing != missing {
		t.Errorf("survey %+v, want %d missing bytes, error %v", survey, missing, err)
	}
	grown := memoryInUse(t) - before
	t.Logf("the tables were made in %v, the survey took %v, the memory grew by %.1f MiB", opened, time.Since(begin), float64(grown)/(1<<20))
	if grown > 32<<20 {
		t.Errorf("the memory grew by %d bytes", grown)
	}
}

// memoryInUse returns the bytes that the runtime has ever had from the system. Mapped files do not count.
func memoryInUse(t *testing.T) int64 {
	t.Helper()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
