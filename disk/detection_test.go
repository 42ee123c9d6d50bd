package disk

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	detectionFiles   = flag.Int("detection.files", race.Fewer(400, 10), "number of generated files of TestQEMUDetectsAcceptedFormat")
	detectionSeed    = flag.Uint64("detection.seed", 1, "seed of the generated files")
	detectionRefused = flag.Bool("detection.refused", false, "run qemu-img on the rejected files, too, and print what it says")
)

// TestQEMUDetectsAcceptedFormat generates files of all formats that QEMU 7.2 knows. qemu-img must
// detect each accepted file as the format it was accepted as.
//
// The names in the files are those of harmless files in the folder of the test: qemu-img opens them.
func TestQEMUDetectsAcceptedFormat(t *testing.T) {
	need.Programs(t, "qemu-img")
	g := newGenerator(t)
	results := detectionResults{accepted: map[string]int{}, rejected: map[string]int{}}
	files := make(chan uint64)
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		folder := t.TempDir()
		for _, name := range harmlessFiles {
			if err := os.WriteFile(filepath.Join(folder, name), make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		group.Go(func() {
			for n := range files {
				results.check(t, n, g.generate(n), folder)
			}
		})
	}
	for n := range uint64(*detectionFiles) {
		files <- n
	}
	close(files)
	group.Wait()
	results.print(t)
}

// harmlessFiles are the files that generated files name.
var harmlessFiles = []string{"extent", "extent.vmdk", "base.raw", "data.raw"}

// detectionResults counts the results of all files.
type detectionResults struct {
	mu       sync.Mutex
	accepted map[string]int // by kind and format
	rejected map[string]int // by kind and reason
}

func (r *detectionResults) check(t *testing.T, n uint64, f generated, folder string) {
	format, reason := acceptedFormat(t, f.bytes)
	key, counts := fmt.Sprintf("%-10s %s", f.kind, format), r.accepted
	if format == "" {
		key, counts = fmt.Sprintf("%-10s %s", f.kind, reason), r.rejected
	}
	if format != "" || *detectionRefused {
		got := detectedFormat(t, folder, f.bytes)
		if format != "" && got != string(format) {
			t.Errorf("file %d of seed %d (%s) is accepted as %s, but qemu-img says: %s", n, *detectionSeed, f.kind, format, got)
		}
		if format == "" {
			key += ": qemu-img says " + got
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	counts[key]++
}

func (r *detectionResults) print(t *testing.T) {
	for what, counts := range map[string]map[string]int{"accepted": r.accepted, "rejected": r.rejected} {
		total := 0
		for _, key := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%s %6d %s", what, counts[key], key)
			total += counts[key]
		}
		t.Logf("%s %6d in total", what, total)
	}
}

var numbers = regexp.MustCompile(`\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b`)

// acceptedFormat returns the format as which b is accepted with any declaration, or the reason why it
// is not accepted without one. b must not be accepted as both formats.
func acceptedFormat(t *testing.T, b []byte) (accepted model.Format, reason string) {
	for _, declared := range []model.Format{"", model.Raw, model.QCOW2} {
		info, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		e, refused := errors.AsType[*FormatError](err)
		switch {
		case err != nil && !refused:
			t.Errorf("Inspect: %v", err)
		case err == nil && accepted != "" && accepted != info.Format:
			t.Errorf("a file is accepted as %s and as %s", accepted, info.Format)
		case err == nil:
			accepted = info.Format
		case declared == "":
			reason = numbers.ReplaceAllString(e.Reason, "N")
		}
	}
	return accepted, reason
}

// detectedFormat returns the format that qemu-img detects, or its error message.
func detectedFormat(t *testing.T, folder string, b []byte) string {
	const name = "backing" // the name of every image on a disk
	if err := os.WriteFile(filepath.Join(folder, name), b, 0o600); err != nil {
		t.Error(err)
		return ""
	}
	cmd := need.Command(t, "qemu-img", "info", "--output=json", name)
	cmd.Dir = folder
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var info struct{ Format string }
	if err == nil {
		err = json.Unmarshal(out, &info)
	}
	if err != nil {
		return fmt.Sprintf("%v: %.200s", err, numbers.ReplaceAllString(stderr.String(), "N"))
	}
	return info.Format
}

// generated is a generated file.
type generated struct {
	kind  string
	bytes []byte
}

// generator generates files. File n is always the same for the same seed.
type generator struct {
	images map[string][]byte // real images by name
	names  []string
}

// newGenerator reads the images in testdata that are small enough to write thousands of them.
func newGenerator(t *testing.T) *generator {
	g := &generator{images: map[string][]byte{}}
	files, err := filepath.Glob("testdata/*/*.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".gz")
		if b := image(t, name); len(b) <= 1<<20 {
			g.images[name] = b
		}
	}
	g.names = slices.Sorted(maps.Keys(g.images))
	return g
}

func (g *generator) generate(n uint64) generated {
	r := random{rand.New(rand.NewPCG(*detectionSeed, n))}
	var f generated
	switch r.IntN(20) {
	case 0:
		f = generated{"noise", r.noise(4 << 10)}
	case 1, 2, 3, 4, 5, 6:
		f = generated{"text", r.descriptor()}
	case 7, 8:
		f = generated{"header", r.header()}
	case 9, 10:
		f = generated{"polyglot", g.polyglot(r)}
	default:
		f = g.mutated(r)
	}
	if r.IntN(30) > 0 { // most sizes are whole sectors
		f.bytes = append(f.bytes, make([]byte, -len(f.bytes)&(sector-1))...)
	}
	return f
}

// mutated changes a real image, or its first sectors.
func (g *generator) mutated(r random) generated {
	name := g.names[r.IntN(len(g.names))]
	b := bytes.Clone(g.images[name])
	for range r.IntN(4) {
		if bytes.HasPrefix(b, []byte(qcow2.Magic)) && r.IntN(3) > 0 {
			r.mutateTables(b)
		} else {
			r.mutateHeader(b)
		}
	}
	if r.IntN(20) == 0 {
		b = b[:r.IntN(len(b))]
	}
	return generated{filepath.Base(name), b}
}

// polyglot writes the signature of one file over the beginning of another one.
func (g *generator) polyglot(r random) []byte {
	b := bytes.Clone(g.images[g.names[r.IntN(len(g.names))]])
	for range 1 + r.IntN(2) {
		s := signatures[r.IntN(len(signatures))]
		copy(b[min(s.offset, len(b)):], s.bytes)
	}
	switch r.IntN(4) {
	case 0:
		return append(r.descriptor(), b...)
	case 1:
		copy(b[len(b)-min(sector, len(b)):], []string{"conectix", "koly"}[r.IntN(2)])
	}
	return b
}

// signatures are the signatures of all formats that QEMU 7.2 detects, and some others.
var signatures = []struct {
	offset int
	bytes  string
}{
	{0, qcow2.Magic + "\x00\x00\x00\x00"}, {0, qcow2.Magic + "\x00\x00\x00\x01"}, {0, qcow2.Magic + "\x00\x00\x00\x02"}, {0, qcow2.Magic + "\x00\x00\x00\x03"},
	{0, "KDMV\x01\x00\x00\x00"}, {0, "COWD\x01\x00\x00\x00"}, {0, "# Disk DescriptorFile\nversion=1\n"},
	{64, "\x7f\x10\xda\xbe\x01\x00\x01\x00"}, {0, "<<< QEMU VM Virtual Disk Image >>>\n"},
	{0, "conectix\x00\x00\x00\x02\x00\x01\x00\x00"}, {0, "vhdxfile"}, {0, "QED\x00"},
	{0, "WithoutFreeSpace\x02\x00\x00\x00"}, {0, "WithouFreSpacExt\x02\x00\x00\x00"},
	{0, "Bochs Virtual HD Image\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00Redolog\x00\x00\x00\x00\x00\x00\x00\x00\x00Growing\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"},
	{0, "Bochs Virtual HD Image\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00Redolog\x00\x00\x00\x00\x00\x00\x00\x00\x00Growing\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00"},
	{0, "#!/bin/sh\n#V2.0 Format\nmodprobe cloop file=$0 && mount -r -t iso9660 /dev/cloop $1\n"}, {0, "#!/bin/sh\n#V2.0 Format\n"},
	{0, "LUKS\xba\xbe\x00\x01"}, {0, "LUKS\xba\xbe\x00\x02"}, {0, "LUKS\xba\xbe\x00\x00"}, {0, "OOOM\x00\x00\x00\x02"},
	{0, "koly"}, {257, "ustar"}, {0, "\x1f\x8b\x08"}, {510, "\x55\xaa"},
}

// random generates random pieces of files.
type random struct{ *rand.Rand }

func (r random) noise(limit int) []byte {
	b := make([]byte, r.IntN(limit)+1)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// header returns a signature and then random bytes. Some of them are zeros.
func (r random) header() []byte {
	b := make([]byte, sector*(1+r.IntN(256)))
	copy(b, r.noise(1+r.IntN(1024)))
	if r.IntN(2) == 0 {
		clear(b[r.IntN(sector):])
	}
	s := signatures[r.IntN(len(signatures))]
	copy(b[s.offset:], s.bytes)
	if r.IntN(4) == 0 {
		r.mutateHeader(b)
	}
	if r.IntN(4) == 0 {
		at := len(b) - min(len(b), 1+r.IntN(2*sector))
		copy(b[at:], []string{"conectix", "koly"}[r.IntN(2)])
	}
	return b
}

// mutateHeader changes some bytes of the first sector.
func (r random) mutateHeader(b []byte) {
	head := b[:min(sector, len(b))]
	if len(head) < 8 {
		return
	}
	switch at := r.IntN(len(head)/8) * 8; r.IntN(4) {
	case 0:
		head[r.IntN(len(head))] = byte(r.Uint32())
	case 1:
		head[r.IntN(min(120, len(head)))] ^= 1 << r.IntN(8)
	case 2:
		binary.BigEndian.PutUint32(head[at+r.IntN(2)*4:], uint32(r.value(len(b))))
	case 3:
		binary.BigEndian.PutUint64(head[at:], r.value(len(b)))
	}
}

// mutateTables changes a number in the first clusters of a qcow2 image, which have its tables.
func (r random) mutateTables(b []byte) {
	if len(b) < 1024 {
		return
	}
	cluster := 1 << min(binary.BigEndian.Uint32(b[20:]), 21)
	at := r.IntN(8)*cluster + r.IntN(1<<r.IntN(10))*8
	if at+8 <= len(b) {
		binary.BigEndian.PutUint64(b[at:], r.value(len(b)))
	}
}

// value returns a number that is probably an offset in a file of n bytes, with flags of qcow2.
func (r random) value(n int) uint64 {
	v := uint64(r.IntN(4))
	switch r.IntN(5) {
	case 0:
		v = r.Uint64() >> r.IntN(64)
	case 1:
		v = uint64(r.IntN(n+1)) &^ 511
	case 2:
		v = uint64(r.IntN(n>>16+2)) << 16
	case 3:
		v = uint64(r.IntN(n>>12+2)) << 12
	}
	if r.IntN(2) == 0 {
		v |= 1 << 63
	}
	if r.IntN(8) == 0 {
		v |= 1 << 62
	}
	return v
}

// descriptor returns a text that QEMU may open as the descriptor of a VMDK image.
func (r random) descriptor() []byte {
	var b []byte
	end := func() string { // of a line; mostly one that QEMU accepts
		if r.IntN(40) == 0 {
			return []string{"\r", "", "\n\n", "\r\r\n"}[r.IntN(4)]
		}
		return []string{"\n", "\r\n"}[r.IntN(2)]
	}
	for range r.IntN(1 << r.IntN(7)) {
		switch r.IntN(40) {
		case 0:
			b = append(b, r.noise(8)...)
		case 1:
			b = append(b, " \t\r\v"[r.IntN(4)])
		default:
			if r.IntN(2) == 0 {
				b = append(b, strings.Repeat(" ", 1+r.IntN(20))...)
				break
			}
			b = append(b, '#')
			for range r.IntN(1 << r.IntN(6)) {
				b = append(b, " abc#=version1\t\x00\xff\""[r.IntN(18)])
			}
		}
		b = append(b, end()...)
	}
	if r.IntN(10) == 0 {
		b = append([]byte("# Disk DescriptorFile\n"), b...)
	}
	version := []string{"version=1", "version=1", "version=2", "version=3", "version=4", "version=0", "version=11", "Version=1", "version = 1", "version=1 "}[r.IntN(10)]
	b = append(append(b, version...), end()...)
	kind := []string{"monolithicFlat", "twoGbMaxExtentSparse", "vmfs", "streamOptimized"}[r.IntN(4)]
	extent := []string{"RW 2048 FLAT", "RW 2048 SPARSE", "RW 2048 VMFS", "RDONLY 2048 FLAT", "RW 2048 ZERO"}[r.IntN(5)]
	b = fmt.Appendf(b, "CID=%08x\nparentCID=ffffffff\ncreateType=\"%s\"\n%s \"%s\" 0\nddb.adapterType = \"ide\"\n",
		r.Uint32(), kind, extent, harmlessFiles[r.IntN(2)])
	return append(b, make([]byte, r.IntN(8)*sector)...)
}
