package delta

import (
	"bufio"
	"errors"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

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
// of them would hash 8 TiB, and remember a million ids.
func TestFewZeroIDsAreComputed(t *testing.T) {
	index := tableOf(t, caibx.Header{Sizes: caibx.Sizes{Min: 1, Avg: 1 << 20, Max: 16 << 20}}, func(add func(int64, caibx.ID)) {
		for n := range int64(1 << 20) {
			id := caibx.ID{byte(n), byte(n >> 8), byte(n >> 16)}
			add(16<<20-n-1, id)
			add(16<<20-n-1, id)
		}
	})
	p := newPlanner(index, nil, false)
	s, err := p.survey(t.Context(), 0)
	if err != nil || s.Missing != s.Size/2 || len(p.zeroIDs) > maxZeroIDs+2 {
		t.Errorf("survey %+v, error %v, %d ids of zeros", s, err, len(p.zeroIDs))
	}
}

// TestRunsOfZerosWithAnyLength has chunks of zeros that are not of the greatest length.
func TestRunsOfZerosWithAnyLength(t *testing.T) {
	index := tableOf(t, small, func(add func(int64, caibx.ID)) {
		for _, length := range []int64{3000, 3000, 3000, 16 << 10, 5000, 5000, 1 << 10} {
			add(length, small.Digest.ZeroID(length))
		}
	})
	p := newPlanner(index, nil, false)
	// Whether the first chunk of a run is zeros is not known yet.
	if s, err := p.survey(t.Context(), 0); err != nil || s.Missing != 3000+5000 {
		t.Errorf("survey %+v, error %v", s, err)
	}
}
