package main

import (
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var updateSize = flag.Int64("update.size", 4<<30, "bytes of the image that BenchmarkUpdate updates; TMPDIR needs six times as many")

// BenchmarkUpdate updates an image of random bytes, of which 1 % has changed in one place, by its index: from the older
// generation with its index beside it, and from one without, which is cut first. It compares the time of one reconcile
// with SHA-512 alone over the bytes of the image in memory. TMPDIR must be on a disk.
func BenchmarkUpdate(b *testing.B) {
	u := newUpdateSite(b)
	u.program = buildProgram(b)
	writeImage(b, u.path("old.raw"), *updateSize, 64<<20)
	u.run(exec.Command("cp", "--reflink=auto", u.path("old.raw"), u.path("next.raw")))
	overwrite(b, u.path("next.raw"), *updateSize/3, *updateSize/100)
	u.run(u.command("publish", u.path("old.raw"), u.path("next.raw"), "--out", u.dir))
	for _, seed := range []string{"index", "cut"} {
		b.Run(seed, func(b *testing.B) {
			u.newNode()
			u.update("old.raw")
			old := filepath.Dir(u.copies()[0])
			if seed == "cut" {
				if err := os.Remove(filepath.Join(old, "backing.caibx")); err != nil {
					b.Fatal(err)
				}
			}
			u.declare("next.raw")
			var ours, hash []cost
			u.sentBytes()
			for b.Loop() {
				hash = append(hash, hashAlone(b, *updateSize))
				ours = append(ours, measure(b, u.reconcileCommand()))
				u.removeCopiesExcept(old)
			}
			sent := u.sentBytes() / int64(len(ours))
			o, h := median(ours), median(hash)
			b.ReportMetric(0, "ns/op") // 0 hides ns/op, which would be the sum of both
			b.ReportMetric(o.wall.Seconds(), "s")
			b.ReportMetric(o.wall.Seconds()/h.wall.Seconds(), "wall/sha512")
			b.ReportMetric(o.cpu.Seconds()/h.cpu.Seconds(), "cpu/sha512")
			b.ReportMetric(float64(sent)/float64(*updateSize)*100, "%-sent")
			b.ReportMetric(float64(o.rss)/(1<<20), "MiB-rss")
		})
	}
}

// overwrite writes random bytes into a file.
func overwrite(b *testing.B, name string, at, length int64) {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(io.NewOffsetWriter(f, at), io.LimitReader(rand.NewChaCha8([32]byte{5}), length)); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
}

// removeCopiesExcept removes the only copy on the disk beside that in a folder.
func (u *updateSite) removeCopiesExcept(folder string) {
	u.t.Helper()
	found := u.copies()
	if len(found) != 2 {
		u.t.Fatalf("the disk has the copies %v, want two", found)
	}
	for _, name := range found {
		if filepath.Dir(name) == folder {
			continue
		}
		if err := os.RemoveAll(filepath.Dir(name)); err != nil {
			u.t.Fatal(err)
		}
	}
}
