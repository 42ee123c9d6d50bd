package caibx

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// fixtureID is the id of the chunk in testdata/chunks.
func fixtureID(t testing.TB) ID {
	t.Helper()
	id, err := hex.DecodeString("ed931e241fa25137795186149c557ed178724bb0397056fc31e2d239a7342a0f")
	if err != nil {
		t.Fatal(err)
	}
	return ID(id)
}

func TestUnpackChunksOfCasync(t *testing.T) {
	id, want := fixtureID(t), fixture(t, "chunks/plain")
	reasons := map[string]string{
		"zstd": "", "gzip": "", "xz": "",
		"bomb": "output bigger", "empty-file": "not packed by zstd, gzip or xz", "flipped": "the id of the 11684 bytes is",
		"html": "not packed by zstd, gzip or xz", "plain": "not packed by zstd, gzip or xz", "truncated": "unexpected EOF",
		"wrong-bytes": "the id of the 11684 bytes is", "wrong-length": "decompressed size",
	}
	files, err := os.ReadDir("testdata/chunks")
	if err != nil || len(files) != len(reasons) {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	u := NewUnpacker()
	for range 2 { // an error must not affect the next chunk
		for _, f := range files {
			chunk := make([]byte, len(want))
			err := u.Unpack(chunk, fixture(t, filepath.Join("chunks", f.Name())), SHA512_256, id)
			reason := reasons[f.Name()]
			switch {
			case reason == "" && (err != nil || !bytes.Equal(chunk, want)):
				t.Errorf("%s: error %v, or other bytes", f.Name(), err)
			case reason != "" && (!errors.Is(err, ErrWrongChunk) || !strings.Contains(err.Error(), reason)):
				t.Errorf("%s: error %v, want %q", f.Name(), err, reason)
			}
		}
	}
}

// TestUnpackHasBoundedMemory unpacks a chunk that claims to have 300 MiB.
func TestUnpackHasBoundedMemory(t *testing.T) {
	u, bomb, chunk := NewUnpacker(), fixture(t, "chunks/bomb"), make([]byte, 11684)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := u.Unpack(chunk, bomb, SHA512_256, fixtureID(t)); err == nil {
		t.Error("the bomb is accepted")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

func TestUnpackWhatWasPacked(t *testing.T) {
	p, u := NewPacker(), NewUnpacker()
	for _, chunk := range [][]byte{[]byte("Q"), noise(1, 70000), make([]byte, 1<<20), bytes.Repeat([]byte("parrot"), 3<<20), noise(2, 20<<20)} {
		id := SHA256.ID(chunk)
		packed := p.Pack(nil, chunk)
		got := make([]byte, len(chunk))
		if err := u.Unpack(got, packed, SHA256, id); err != nil || !bytes.Equal(got, chunk) {
			t.Errorf("%d bytes: error %v, or other bytes", len(chunk), err)
		}
		if int64(len(packed)) > MaxPacked(int64(len(chunk))) {
			t.Errorf("%d bytes are packed into %d", len(chunk), len(packed))
		}
		for _, length := range []int{len(chunk) - 1, len(chunk) + 1} {
			if err := u.Unpack(make([]byte, length), packed, SHA256, id); !errors.Is(err, ErrWrongChunk) {
				t.Errorf("%d bytes as %d: error %v", len(chunk), length, err)
			}
		}
	}
}

func TestPathsInAStore(t *testing.T) {
	id := fixtureID(t)
	if got, want := id.PackedPath(), "ed93/"+id.String()+".cacnk"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := id.PlainPath(), "ed93/"+id.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzUnpack(f *testing.F) {
	files, err := filepath.Glob("testdata/chunks/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, uint16(11684))
	}
	u, id := NewUnpacker(), fixtureID(f)
	f.Fuzz(func(t *testing.T, packed []byte, length uint16) {
		chunk := make([]byte, length)
		if err := u.Unpack(chunk, packed, SHA512_256, id); err == nil && SHA512_256.ID(chunk) != id {
			t.Error("the chunk was not verified")
		}
	})
}
