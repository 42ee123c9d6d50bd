package peer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// memory is a caibx.File.
type memory struct{ *bytes.Reader }

func (memory) IsHole(from, to int64) bool { return false }

// indexOf returns the index of an image.
func indexOf(t *testing.T, image []byte) []byte {
	t.Helper()
	f, err := caibx.TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := caibx.Header{Sizes: caibx.SizesOf(16 << 10)}
	table, err := caibx.Cut(context.Background(), memory{bytes.NewReader(image)}, int64(len(image)), h, f, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	return bytes.Clone(table.Index())
}

// putIndexed makes a ready copy that has an index.
func (n *node) putIndexed(t *testing.T, id ident.ID, content, index []byte) Source {
	t.Helper()
	p, err := n.disk.OpenPart(t.Context(), id, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if err := p.StoreIndex(func(f *os.File) error { _, err := f.Write(index); return err }); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	return Source{Address: n.address(), Disk: "disk1", ID: id, ManifestDigest: c.ManifestDigest, Size: c.Size}
}

// indexedSeed returns a seed that has an index.
func indexedSeed(t *testing.T, content []byte, damaged *atomic.Int32) (assemble.Seed, string) {
	t.Helper()
	n := startNode(t, "seed")
	old := ident.ID{Name: parrot.Name, UUID: "00000001"}
	n.putIndexed(t, old, content, indexOf(t, content))
	s := openSeed(t, n, old, damaged)
	index, err := n.disk.Index(old)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { index.Close() })
	s.Index = index
	return s, n.backing(old)
}

func TestPullFindsMovedContent(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			old := randomBytes((6 + random.IntN(6)) * mib)
			at := random.IntN(mib) / 512 * 512
			want := slices.Insert(bytes.Clone(old), at, randomBytes(1024)...)
			if i%2 == 1 { // and a hole, and a new part at the end
				clear(want[3*mib : 5*mib])
				want = append(want, randomBytes(2*mib)...)
			}
			var damaged atomic.Int32
			seed, _ := indexedSeed(t, old, &damaged)
			n := startNode(t, "node1")
			r := newReceiver(t, n.putIndexed(t, parrot, want, indexOf(t, want)))
			r.pull.Seeds = []assemble.Seed{seed}
			r.pullsAndCommits(want)
			most := int64(2*mib+len(indexOf(t, want))) + model.ChunkFileSize(int64(len(want)))
			if i%2 == 1 {
				most += 5 * mib // the new part, and the chunks at the borders
			}
			if got := r.pull.Progress.PeerBytes.Load(); got > most || damaged.Load() > 0 {
				t.Errorf("received %d bytes, want at most %d of %d", got, most, len(want))
			}
			if _, err := r.disk.Index(parrot); err != nil {
				t.Error("the index is not kept:", err)
			}
		})
	}
}

// TestPullIgnoresWrongIndexes has a source that sends something else instead of the index.
func TestPullIgnoresWrongIndexes(t *testing.T) {
	old := randomBytes(6 * mib)
	want := slices.Insert(bytes.Clone(old), 1000*512, randomBytes(1024)...)
	other := indexOf(t, randomBytes(len(want)))
	swapped := indexOf(t, want)
	for at := 64; at+80 < len(swapped)-40; at += 80 { // exchange the ids of two items
		a, b := swapped[at+8:at+40], swapped[at+48:at+80]
		saved := bytes.Clone(a)
		copy(a, b)
		copy(b, saved)
	}
	for name, index := range map[string][]byte{
		"of another image": other, "swapped": swapped, "no index": []byte("<html>"), "none": {}, "truncated": indexOf(t, want)[:500],
		"of the old image": indexOf(t, append(bytes.Clone(old), make([]byte, 1024)...)),
	} {
		t.Run(name, func(t *testing.T) {
			var damaged atomic.Int32
			seed, _ := indexedSeed(t, old, &damaged)
			r := newReceiver(t, startNode(t, "node1").putIndexed(t, parrot, want, index))
			r.pull.Seeds = []assemble.Seed{seed}
			r.pullsAndCommits(want)
			if most := int64(len(want)+len(index)) + model.ChunkFileSize(int64(len(want))); r.pull.Progress.PeerBytes.Load() > most || damaged.Load() > 0 {
				t.Errorf("received %d bytes, want at most %d; damaged %d", r.pull.Progress.PeerBytes.Load(), most, damaged.Load())
			}
		})
	}
}

// TestDamagedSeedWithMovedContent damages a chunk of a seed: the chunks that need it are requested.
func TestDamagedSeedWithMovedContent(t *testing.T) {
	old := randomBytes(8 * mib)
	want := slices.Insert(bytes.Clone(old), 512, randomBytes(1024)...)
	var damaged atomic.Int32
	seed, backing := indexedSeed(t, old, &damaged)
	rotten := bytes.Clone(old)
	rotten[5*mib+7] ^= 1
	overwrite(t, backing, rotten)
	r := newReceiver(t, startNode(t, "node1").putIndexed(t, parrot, want, indexOf(t, want)))
	r.pull.Seeds = []assemble.Seed{seed}
	r.pullsAndCommits(want)
	if got := r.pull.Progress.PeerBytes.Load(); got > 4*mib || damaged.Load() != 1 {
		t.Errorf("received %d bytes; damaged %d", got, damaged.Load())
	}
}
