package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
)

const mib = 1 << 20

// mkimage makes an image, see script_test.go.
func mkimage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: mkimage FILE raw|sparse|qcow2 SIZE [SEED]")
	}
	size, seed := parseSize(ts, args[2]), int64(1)
	if len(args) > 3 {
		seed = parseSize(ts, args[3])
	}
	ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(args[0])), 0o755))
	f, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	noise := func(n int64) io.Reader {
		return io.LimitReader(rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}), n)
	}
	switch args[1] {
	case "raw":
		_, err = io.Copy(f, noise(size))
	case "sparse":
		ts.Check(f.Truncate(size))
		_, err = io.Copy(io.NewOffsetWriter(f, 0), noise(min(mib, size)))
		ts.Check(err)
		_, err = io.Copy(io.NewOffsetWriter(f, size/2), noise(min(mib, size-size/2)))
	case "qcow2":
		err = writeQCOW2(f, size, noise(mib))
	default:
		err = fmt.Errorf("mkimage: no kind %q", args[1])
	}
	ts.Check(err)
	ts.Check(f.Close())
}

// writeQCOW2 writes an image of version 3: a header, a table and a block of
// reference counts, an L1 and an L2 table, and data, each in clusters of 64 KiB.
// The data is what a guest sees at its start.
func writeQCOW2(w io.Writer, size int64, data io.Reader) error {
	const cluster = 64 << 10
	content, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	b := make([]byte, 5*cluster)
	at := func(offset int, v any) {
		if _, err := binary.Encode(b[offset:], binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
	copy(b, "QFI\xfb")
	at(4, uint32(3))
	at(20, uint32(16)) // cluster bits
	at(24, uint64(size))
	at(36, uint32((size+cluster*cluster/8-1)/(cluster*cluster/8))) // L1 entries
	at(40, uint64(3*cluster))
	at(48, uint64(cluster)) // reference counts
	at(56, uint32(1))
	at(96, uint32(4)) // of 16 bits
	at(100, uint32(104))
	const used = 1 << 63 // by one owner: may be written in place
	at(cluster, uint64(2*cluster))
	at(3*cluster, uint64(used|4*cluster))
	clusters := len(content) / cluster
	for i := range 5 + clusters {
		at(2*cluster+2*i, uint16(1))
	}
	for i := range clusters {
		at(4*cluster+8*i, uint64(used|uint64(5+i)*cluster))
	}
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(b), bytes.NewReader(content)))
	return err
}
