package peer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
)

// seedOf returns a seed with the content, on a disk of its own. It counts the calls of Damaged.
func seedOf(t *testing.T, content []byte, damaged *atomic.Int32) (s assemble.Seed, backing string) {
	t.Helper()
	n := startNode(t, "seed")
	old := ident.ID{Name: parrot.Name, UUID: "00000001"}
	n.put(t, old, content)
	return openSeed(t, n, old, damaged), n.backing(old)
}

func openSeed(t *testing.T, n *node, id ident.ID, damaged *atomic.Int32) assemble.Seed {
	t.Helper()
	r, err := n.disk.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	m, err := n.disk.Manifest(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return assemble.Seed{ID: id, Reader: r, Manifest: m, Damaged: func() { damaged.Add(1) }}
}

// missingBytes returns the bytes of the chunks with data of an image that are in no seed at the same place.
func missingBytes(image []byte, seeds ...[]byte) int64 {
	missing := int64(0)
	for from := 0; from < len(image); from += mib {
		chunk := image[from:min(from+mib, len(image))]
		inSeed := slices.ContainsFunc(seeds, func(seed []byte) bool {
			return from < len(seed) && bytes.Equal(chunk, seed[from:min(from+mib, len(seed))])
		})
		if !inSeed {
			missing += dataBytes(chunk)
		}
	}
	return missing
}

var (
	pairs     = flag.Uint64("delta.pairs", 20, "number of pairs of images that TestPullReadsChunksFromSeeds has")
	firstPair = flag.Uint64("delta.first", 0, "number of the first pair")
)

// TestPullReadsChunksFromSeeds pulls new versions of random images, with the old version and a part of it as seeds.
// Exactly the chunks that no seed has at the same place are transferred.
func TestPullReadsChunksFromSeeds(t *testing.T) {
	for n := *firstPair; n < *firstPair+*pairs; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			random, old, want := imagetest.Pair(t, n)
			older := bytes.Clone(old[:random.IntN(len(old)/512+1)*512])
			var damaged atomic.Int32
			seed, _ := seedOf(t, old, &damaged)
			seeds, contents := []assemble.Seed{seed}, [][]byte{old}
			if len(older) > 0 && !bytes.HasPrefix(old, []byte("QFI")) { // a part of a qcow2 image is no image
				older[random.IntN(len(older))] ^= 2
				second, _ := seedOf(t, older, &damaged)
				seeds, contents = append([]assemble.Seed{second}, seeds...), append(contents, older)
			}
			r := newReceiver(t, startNode(t, "node1").put(t, parrot, want))
			r.pull.Seeds = seeds
			r.pullsAndCommits(want)
			least := missingBytes(want, contents...)
			if got := r.pull.Progress.PeerBytes.Load() - model.ChunkFileSize(int64(len(want))); got != least || damaged.Load() > 0 {
				t.Errorf("received %d bytes, want %d; %d seeds are damaged", got, least, damaged.Load())
			}
			if done := r.pull.Progress.Done.Load(); done != int64(len(want)) {
				t.Errorf("progress is %d bytes, want %d", done, len(want))
			}
		})
	}
}

// TestSeedWithAnotherAlgorithm uses a seed whose manifest has SHA-256 hashes: it saves nothing.
func TestSeedWithAnotherAlgorithm(t *testing.T) {
	old := image(5*mib + 512)
	n := startNode(t, "seed")
	id := ident.ID{Name: parrot.Name, UUID: "00000001"}
	n.put(t, id, old)
	file := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte("BIMCHUNK"), 1), mib)
	digest := disk.NewManifestHash(disk.ChunkSHA256)
	for chunk := range slices.Chunk(old, mib) {
		sum := sha256.Sum256(chunk)
		file = append(file, sum[:]...)
		digest.AddChunk(chunk)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(n.backing(id)), "backing.chunks"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.disk.Update(id, func(r *disk.Record) { r.ManifestDigest = digest.Digest() }); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(old)
	want[2*mib] ^= 1
	var damaged atomic.Int32
	r := newReceiver(t, startNode(t, "node1").put(t, parrot, want))
	r.pull.Seeds = []assemble.Seed{openSeed(t, n, id, &damaged)}
	r.pullsAndCommits(want)
	if got := r.pull.Progress.PeerBytes.Load() - model.ChunkFileSize(int64(len(want))); disk.NewChunks != disk.ChunkSHA256 && got != dataBytes(want) {
		t.Errorf("received %d bytes, want %d", got, dataBytes(want))
	}
}

// TestDamagedSeedIsReported damages chunks of a seed after its manifest was read: they are requested.
// When the pull finds the last one, all lanes have no other work left.
func TestDamagedSeedIsReported(t *testing.T) {
	want := randomBytes(6*mib + 512)
	for _, at := range [][]int{{0}, {3 * mib}, {6*mib + 511}, {mib, 2*mib + 5, 6 * mib}} {
		old := bytes.Clone(want)
		old[4*mib] ^= 1 // the only chunk that differs
		var damaged atomic.Int32
		seed, backing := seedOf(t, old, &damaged)
		rotten := bytes.Clone(old)
		for _, n := range at {
			rotten[n] ^= 0x80
		}
		overwrite(t, backing, rotten)
		r := newReceiver(t, startNode(t, "node1").put(t, parrot, want))
		r.pull.Seeds = []assemble.Seed{seed}
		r.pullsAndCommits(want)
		if got := r.pull.Progress.PeerBytes.Load() - model.ChunkFileSize(int64(len(want))); got != missingBytes(want, rotten) {
			t.Errorf("damage at %d: received %d bytes, want %d", at, got, missingBytes(want, rotten))
		}
		if damaged.Load() != 1 {
			t.Errorf("damage at %d: it was reported %d times", at, damaged.Load())
		}
	}
}

// TestSeedThatEnds truncates a seed after its manifest was read.
func TestSeedThatEnds(t *testing.T) {
	want := randomBytes(4 * mib)
	var damaged atomic.Int32
	seed, backing := seedOf(t, want, &damaged)
	if err := os.Truncate(backing, 2*mib+100); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t, startNode(t, "node1").put(t, parrot, want))
	r.pull.Seeds = []assemble.Seed{seed}
	r.pullsAndCommits(want)
	if damaged.Load() != 1 {
		t.Errorf("it was reported %d times", damaged.Load())
	}
}
