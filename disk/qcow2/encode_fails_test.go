package qcow2

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// failing is a Source that breaks its word.
type failing struct {
	*patches
	reads  int // until all bytes are others
	err    error
	ranges func(off int64) (start, end int64)
}

func (s *failing) ReadAt(p []byte, off int64) (int, error) {
	if s.reads--; s.err != nil && s.reads < 0 {
		return 0, s.err
	}
	n, err := s.patches.ReadAt(p, off)
	if s.reads < 0 {
		rand.NewChaCha8([32]byte{}).Read(p[:n])
	}
	return n, err
}

func (s *failing) NextData(off int64) (start, end int64, err error) {
	if s.ranges == nil {
		return s.patches.NextData(off)
	}
	start, end = s.ranges(off)
	return start, end, nil
}

func TestEncodeFails(t *testing.T) {
	src := func() *patches {
		return &patches{size: 1 << 20, pieces: []patch{{0, bytes.Repeat([]byte("text"), 10<<10)}}}
	}
	for _, size := range []int64{0, -512, 100, maxVirtualSize + 512} {
		if _, err := Encode(&patches{size: size}, Options{}); err == nil {
			t.Errorf("Encode of %d bytes succeeded", size)
		}
	}
	for _, ranges := range []func(int64) (int64, int64){
		func(off int64) (int64, int64) { return off, off },
		func(off int64) (int64, int64) { return 0, 100 },
		func(off int64) (int64, int64) { return off + 10, off },
		func(off int64) (int64, int64) { return off, 1<<20 + 1 },
	} {
		if _, err := Encode(&failing{patches: src(), ranges: ranges}, Options{}); err == nil {
			t.Error("Encode of wrong ranges succeeded")
		}
	}
	broken := errors.New("bad sector")
	if _, err := Encode(&failing{patches: src(), err: broken}, Options{Compress: true}); !errors.Is(err, broken) {
		t.Errorf("Encode: %v; want %v", err, broken)
	}
	for _, c := range []struct {
		err  error
		o    Options
		want error
	}{{broken, Options{}, broken}, {broken, Options{Compress: true}, broken}, {nil, Options{Compress: true}, errChanged}} {
		s := &failing{patches: src(), reads: 1}
		if !c.o.Compress {
			s.reads = 0
		}
		s.err = c.err
		e, err := Encode(s, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, e); !errors.Is(err, c.want) || n >= e.Size() {
			t.Errorf("%d of %d bytes, %v; want %v", n, e.Size(), err, c.want)
		}
	}
}
