package replica

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// written is a volume that a test writes, together with its expected content: for each layer, the
// sectors that were written to it.
type written struct {
	t      testing.TB
	r      *rand.Rand
	dir    string // of the replica
	size   int64
	base   []byte // nil: no backing image
	image  string // the BackingFilePath
	heads  int
	head   string
	parent string
	layers []map[int64][]byte // layers of the current volume, oldest first
	taken  map[string]taken   // snapshots by name
}

// taken is the state of the volume when a snapshot was taken.
type taken struct {
	layers []map[int64][]byte
	size   int64 // of the newest layer; the volume may have been expanded after it
}

const testVolume, testReplica = "vol", "vol-0a1b2c3d"

// newModel creates a disk with a volume of size bytes.
func newModel(t testing.TB, seed uint64, size int64) (m *written, disk string) {
	disk = t.TempDir()
	m = &written{t: t, r: rand.New(rand.NewPCG(seed, 7)), size: size, taken: map[string]taken{}}
	m.dir = filepath.Join(disk, "replicas", testReplica)
	m.must(os.MkdirAll(m.dir, 0o700))
	m.must(os.WriteFile(filepath.Join(disk, "longhorn-disk.cfg"), []byte(`{"diskName":"d","diskUUID":"0a1b2c3d-0000-4000-8000-000000000000","diskDriver":"","state":"ready"}`), 0o600))
	return m, disk
}

func (m *written) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *written) path(file string) string { return filepath.Join(m.dir, file) }

func (m *written) json(file string, v any) {
	data, err := json.Marshal(v)
	m.must(err)
	m.must(os.WriteFile(m.path(file), append(data, '\n'), 0o600))
}

func (m *written) meta(file, parent string) {
	m.json(file+metaSuffix, map[string]any{"Name": "volume-head-007.img", "Parent": parent, "Removed": m.r.IntN(5) == 0, "Labels": nil})
}

// volume writes volume.meta.
func (m *written) volume(more map[string]any) {
	v := map[string]any{"Size": m.size, "Head": m.head, "Dirty": false, "Rebuilding": false, "Error": "", "Parent": m.parent, "SectorSize": 512, "BackingFilePath": m.image}
	maps.Copy(v, more)
	m.json(volumeFile, v)
}

// begin creates a new head above the existing layers.
func (m *written) begin() *os.File {
	m.head = fmt.Sprintf("volume-head-%03d.img", m.heads)
	m.heads++
	m.layers = append(m.layers[:len(m.layers):len(m.layers)], map[int64][]byte{})
	f, err := os.Create(m.path(m.head))
	m.must(err)
	m.must(f.Truncate(m.size))
	m.meta(m.head, m.parent)
	m.volume(nil)
	return f
}

// snapshot turns the head into a snapshot. The caller must then call begin.
func (m *written) snapshot(name string) {
	file := snapshotPrefix + name + imageSuffix
	m.must(os.Rename(m.path(m.head), m.path(file)))
	m.must(os.Remove(m.path(m.head + metaSuffix)))
	m.meta(file, m.parent)
	m.parent, m.taken[name] = file, taken{m.layers, m.size}
}

// linked creates a snapshot like an engine that exits before it creates the new head.
func (m *written) linked(name string) {
	file := snapshotPrefix + name + imageSuffix
	m.must(os.Link(m.path(m.head), m.path(file)))
	m.must(os.Link(m.path(m.head+metaSuffix), m.path(file+metaSuffix)))
	m.taken[name] = taken{m.layers, m.size}
}

// sectors returns a random range of sectors.
func (m *written) sectors(most int64) (first, n int64) {
	all := m.size / sector
	n = 1 + m.r.Int64N(most)
	return m.r.Int64N(max(1, all-n)), min(n, all)
}

// change changes the head in a random way.
func (m *written) change(f *os.File) {
	head := m.layers[len(m.layers)-1]
	first, n := m.sectors(24)
	switch m.r.IntN(12) {
	default:
		m.write(f, first, n, m.noise)
	case 0:
		m.write(f, first, n, func([]byte) {}) // zeros as data
	case 1: // a small write: the engine reads the sector, changes it and writes the whole sector
		data := make([]byte, sector)
		copy(data, flatten(m.layers, m.base, m.size)[first*sector:])
		m.noise(data[512*m.r.IntN(8):][:512])
		m.put(f, first, data)
	case 2, 3, 4:
		m.must(unix.Fallocate(int(f.Fd()), 0, first*sector, n*sector))
		for i := first; i < first+n; i++ {
			if head[i] == nil {
				head[i] = make([]byte, sector)
			}
		}
	case 5, 6:
		m.must(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, first*sector, n*sector))
		for i := first; i < first+n; i++ {
			delete(head, i)
		}
	case 7: // more extents than fit in one FIEMAP call
		if m.r.IntN(4) == 0 {
			for i := first; i < min(first+1400, m.size/sector); i += 2 {
				m.write(f, i, 1, m.noise)
			}
		}
	}
}

func (m *written) noise(b []byte) {
	for i := range b {
		b[i] = byte(m.r.Uint32())
	}
}

func (m *written) write(f *os.File, first, n int64, fill func([]byte)) {
	for i := first; i < first+n; i++ {
		data := make([]byte, sector)
		fill(data[:64+m.r.IntN(sector-64)])
		m.put(f, i, data)
	}
}

func (m *written) put(f *os.File, i int64, data []byte) {
	_, err := f.WriteAt(data, i*sector)
	m.must(err)
	m.layers[len(m.layers)-1][i] = data
}

// useBackingImage gives the volume a backing image of size bytes in the given format.
func (m *written) useBackingImage(format string, size int64) {
	m.base = make([]byte, size)
	for range 1 + m.r.IntN(20) {
		at := m.r.Int64N(size)
		m.noise(m.base[at:][:min(m.r.Int64N(200<<10), size-at)])
	}
	folder := filepath.Join(m.dir, "../../backing-images/parrot-6846a0b2")
	m.must(os.MkdirAll(folder, 0o700))
	m.image = "/host/var/lib/longhorn/backing-images/parrot-6846a0b2" + []string{"", "/backing"}[m.r.IntN(2)]
	file := filepath.Join(folder, "backing")
	raw, err := os.Create(file)
	m.must(err)
	m.must(raw.Truncate(size))
	for at := int64(0); at < size; at += sector {
		if piece := m.base[at:min(at+sector, size)]; !bytes.Equal(piece, make([]byte, len(piece))) || m.r.IntN(4) == 0 {
			_, err := raw.WriteAt(piece, at)
			m.must(err)
		}
	}
	m.must(raw.Close())
	if format == "raw" {
		return
	}
	m.must(os.Rename(file, file+".raw"))
	args := []string{"convert", "-f", "raw", "-O", "qcow2", "-o", []string{"compat=1.1", "compat=1.1,cluster_size=4096", "compat=0.10"}[m.r.IntN(3)], file + ".raw", file}
	if m.r.IntN(2) == 0 {
		args = append(args, "-c")
	}
	if out, err := need.Command(m.t, "qemu-img", args...).CombinedOutput(); err != nil {
		m.t.Fatalf("qemu-img: %v: %s", err, out)
	}
	m.must(os.Remove(file + ".raw"))
}

// flatten returns the content of a volume of size bytes.
func flatten(layers []map[int64][]byte, base []byte, size int64) []byte {
	disk := make([]byte, size)
	copy(disk, base)
	for _, l := range layers {
		for i, data := range l {
			copy(disk[i*sector:], data)
		}
	}
	return disk
}
