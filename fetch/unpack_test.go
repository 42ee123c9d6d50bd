package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// bz2 is the output of bzip2: a stream of 32 KiB of zeros, and a stream of 4 KiB of ones.
const bz2 = "QlpoOTFBWSZTWWU/+IAAAEBAgMAAAAQACCAAMMwFU2pAKOA8XckU4UJBlP/iAEJaaDkxQVkmU1k5ZUkpAAAIQACgBAAIIAAwzAVTakFHDxdyRThQkDllSSk="

var bz2Image = append(make([]byte, 32<<10), bytes.Repeat([]byte{1}, 4<<10)...)

// packWith compresses b with a Go library.
func packWith(t testing.TB, p packing, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch p {
	case packedGz:
		w = gzip.NewWriter(&out)
	case packedZst:
		w, err = zstd.NewWriter(&out)
	case packedXz:
		w, err = xz.WriterConfig{BlockSize: 1 << 20, DictCap: 1 << 20}.NewWriter(&out)
	default:
		t.Fatalf("cannot pack %s", p)
	}
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// packedFile is a file of two packed files, one after the other.
type packedFile struct{ packed, image []byte }

func files(t *testing.T) map[packing]packedFile {
	small := append(fetchtest.Random(3, 400<<10), make([]byte, 2<<20)...)
	files := map[packing]packedFile{}
	for _, p := range []packing{packedGz, packedZst, packedXz} {
		first, second := packWith(t, p, small[:300<<10]), packWith(t, p, small[300<<10:])
		files[p] = packedFile{append(first, second...), small}
	}
	packed, err := base64.StdEncoding.DecodeString(bz2)
	if err != nil {
		t.Fatal(err)
	}
	files[packedBz2] = packedFile{packed, bz2Image}
	return files
}

func TestDownloadUnpacks(t *testing.T) {
	for p, f := range files(t) {
		half := int64(len(f.packed) / 2)
		wrong := append(bytes.Clone(f.packed[:half]), f.packed[half]^0xff)
		wrong = append(wrong, f.packed[half+1:]...)
		tests := []struct {
			name   string
			body   []byte
			faults []fetchtest.Fault
			req    Request
			word   string // expected in an error of class BadSource; empty: no error
		}{
			{name: "several members", body: f.packed},
			{name: "cut and resumed", body: f.packed, faults: []fetchtest.Fault{{Kind: fetchtest.Cut, At: half, Times: 1}}},
			{name: "cut, no range", body: f.packed, faults: []fetchtest.Fault{{Kind: fetchtest.Cut, At: half, Times: 1}, {Kind: fetchtest.NoRange}}},
			{name: "both digests", body: f.packed, req: Request{Digest: digest(f.image), PackedDigest: digest(f.packed)}},
			{name: "wrong packed digest", body: f.packed, req: Request{PackedDigest: digest(f.image)}, word: "packed file: checksum mismatch"},
			{name: "wrong digest", body: f.packed, req: Request{Digest: digest(f.packed)}, word: "checksum mismatch"},
			{name: "truncated", body: f.packed[:len(f.packed)-3], word: "unpack " + string(p)},
			{name: "other bytes after the end", body: append(bytes.Clone(f.packed), "garbage, and more of it"...), word: "other bytes follow the packed ones"},
			{name: "other bytes after the end, and a digest", body: append(bytes.Clone(f.packed), "garbage, and more of it"...), req: Request{Digest: digest(f.image)}},
			{name: "damaged", body: wrong, word: "unpack " + string(p)},
			{name: "not packed", body: image, word: "declare unpack: none"},
			{name: "too large", body: f.packed, req: Request{MaxSize: 16 << 10}, word: "larger than allowed"},
		}
		for i, tt := range tests {
			if race.Enabled && i%8 != 0 {
				continue
			}
			t.Run(string(p)+" "+tt.name, func(t *testing.T) {
				r := newFixture(t)
				tt.req.URL = r.server.Serve("/image.raw."+string(p), fetchtest.Bytes(tt.body), tt.faults...)
				err := r.download(tt.req)
				if tt.word != "" {
					wantError(t, err, BadSource, tt.word)
					r.wantNoImage()
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				r.wantImage(f.image)
			})
		}
	}
}

// TestUnpackWhatFollows puts bytes behind a packed file. Zeros are padding; other bytes are accepted if a checksum decides.
func TestUnpackWhatFollows(t *testing.T) {
	for p := range files(t) {
		f := files(t)[p]
		for name, more := range map[string]string{
			"zeros": strings.Repeat("\x00", 512), "a few zeros": "\x00\x00\x00\x00", "text": "{\"metadata\": true} and a signature", "zeros, then text": strings.Repeat("\x00", 16) + strings.Repeat("text", 5000),
		} {
			for _, trailer := range []bool{true, false} {
				r := p.reader(strings.NewReader(string(f.packed)+more), trailer)
				got, err := io.ReadAll(r)
				r.Close()
				if accepted := trailer || !strings.Contains(name, "text"); accepted != (err == nil) || accepted && !bytes.Equal(got, f.image) {
					t.Errorf("%s followed by %s, trailer allowed: %t: got %d bytes, %v", p, name, trailer, len(got), err)
				}
			}
		}
	}
}

// TestUnpackMessages checks that no text of a library is all that a person reads.
func TestUnpackMessages(t *testing.T) {
	for p, f := range files(t) {
		for name, tt := range map[string]struct{ packed, want string }{
			"unpacked":  {string(image[:1<<20]), "the file is not packed with " + string(p) + ": if it is the image itself, declare unpack: none"},
			"truncated": {string(f.packed[:len(f.packed)-7]), "the file is "},
		} {
			_, err := io.ReadAll(p.reader(strings.NewReader(tt.packed), false))
			if err == nil || !strings.HasPrefix(err.Error(), "unpack "+string(p)+": "+tt.want) {
				t.Errorf("%s, %s: got %v, want %s", p, name, err, tt.want)
			}
		}
	}
	var large bytes.Buffer
	cmd := need.Command(t, "zstd", "--long=31", "-c", "--stream-size=4000000000")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(image), &large
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(packedZst.reader(&large, false)); err == nil || !strings.Contains(err.Error(), "dictionary of more than 128 MiB") {
		t.Errorf("a window of 2 GiB: got %v", err)
	}
}

// xzOptions are options of the program xz: checksums, blocks, filters, and sizes of the dictionary.
var xzOptions = []string{
	"-0", "-6", "-T2 --block-size=300KiB", "-1 -T2 --block-size=99999 --check=none", "-1 -T1 --block-size=100KiB",
	"-0 --check=none", "-0 --check=crc32", "-0 --check=sha256", "--lzma2=preset=0,dict=4KiB", "--lzma2=preset=1,lc=0,lp=4,pb=0",
	"--lzma2=preset=1,lc=1,lp=3,pb=4", "--lzma2=preset=1,lc=4,pb=1", "--lzma2=preset=1,dict=128MiB", "--x86 --lzma2=preset=1",
	"--x86=start=4096 --lzma2=preset=1", "-T2 --block-size=300KiB --x86 --lzma2=preset=1", "--delta=dist=4 --lzma2", "--arm --lzma2", "--armthumb --lzma2",
	"--powerpc --lzma2", "--ia64 --lzma2", "--sparc --lzma2", "--delta=dist=1 --x86 --arm --lzma2",
}

// packXz packs b with the program xz.
func packXz(t testing.TB, b []byte, options string) []byte {
	cmd := need.Command(t, "xz", append(strings.Fields(options), "-c")...)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnpackWhatXzPacks(t *testing.T) {
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	code = code[:1<<18]
	var all, packed []byte
	for _, options := range xzOptions {
		one := packXz(t, code, options)
		if got, err := io.ReadAll(packedXz.reader(iotest.HalfReader(bytes.NewReader(one)), false)); err != nil || !bytes.Equal(got, code) {
			t.Errorf("%s: got %d bytes, %v", options, len(got), err)
		}
		all, packed = append(all, code...), append(append(packed, one...), 0, 0, 0, 0)
	}
	if got, err := io.ReadAll(packedXz.reader(bytes.NewReader(packed), false)); err != nil || !bytes.Equal(got, all) {
		t.Errorf("all streams: got %d bytes of %d, %v", len(got), len(all), err)
	}
	if _, err := io.ReadAll(packedXz.reader(bytes.NewReader(packXz(t, code, "--arm64 --lzma2")), false)); err == nil || !strings.Contains(err.Error(), "filters that are not supported") {
		t.Errorf("a filter that the library does not have: got %v", err)
	}
}

// TestEachDamageOfXzIsAnError changes and cuts a file at each byte.
func TestEachDamageOfXzIsAnError(t *testing.T) {
	race.Skip(t)
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 30)
	for _, options := range []string{"-T2 --block-size=400", "-0", "--x86 --lzma2"} {
		packed := packXz(t, text, options)
		for i := range packed {
			wrong := bytes.Clone(packed)
			wrong[i] ^= 1 << (i % 8)
			// The first byte of each chunk of LZMA says nothing.
			if got, err := io.ReadAll(packedXz.reader(bytes.NewReader(wrong), false)); err == nil && !bytes.Equal(got, text) {
				t.Errorf("%s: a change of byte %d of %d is not detected", options, i, len(packed))
			}
			if _, err := io.ReadAll(packedXz.reader(bytes.NewReader(packed[:i]), false)); err == nil {
				t.Errorf("%s: a cut at byte %d of %d is not detected", options, i, len(packed))
			}
		}
	}
}

// FuzzXz compares the decoder with another one.
func FuzzXz(f *testing.F) {
	text := bytes.Repeat([]byte("the quick brown fox \xe8\x00\x01\x00\x00"), 30)
	for _, options := range []string{"-T2 --block-size=300", "--x86 --lzma2=dict=4KiB", "--check=sha256", "--check=none", "--delta=dist=3 --arm --lzma2=dict=4KiB"} {
		f.Add(packXz(f, text, options))
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		const limit = 4 << 20
		got, err := io.ReadAll(io.LimitReader(packedXz.reader(bytes.NewReader(packed), false), limit))
		if err != nil || len(got) == limit {
			return
		}
		r, err := xz.ReaderConfig{DictCap: 1 << 20}.NewReader(bytes.NewReader(packed))
		if err != nil {
			return
		}
		if want, err := io.ReadAll(r); err == nil && !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want %d other bytes", len(got), len(want))
		}
	})
}

func TestUnpackStartsAgainAfterRestart(t *testing.T) {
	r := newFixture(t)
	packed := packWith(t, packedGz, image)
	req := Request{URL: r.server.Serve("/image.raw.gz", fetchtest.Bytes(packed), stallOnce)}
	r.downloadHalf(req)
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
	if got := r.rangeHeaders(); len(got) != 1 || got[0] != "" {
		t.Errorf("got ranges %q, want one request for the whole", got)
	}
}

func TestPackingOf(t *testing.T) {
	tests := []struct {
		unpack, path string
		want         packing
	}{
		{"", "/a.qcow2", notPacked}, {"auto", "/a.raw.GZ", packedGz}, {"", "/a.raw.zst", packedZst}, {"", "/a.xz", packedXz},
		{"none", "/a.xz", notPacked}, {"bz2", "/a", packedBz2}, {"auto", "/a.xz.raw", notPacked},
	}
	for _, tt := range tests {
		a, err := parseAddress("https://example.com" + tt.path + "?x=.gz")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := packingOf(tt.unpack, []address{a}); err != nil || got != tt.want {
			t.Errorf("unpack %q of %s: got %q, %v, want %q", tt.unpack, tt.path, got, err, tt.want)
		}
	}
	_, err := packingOf("rar", nil)
	wantError(t, err, BadConfig, "use auto")
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/a.raw", fetchtest.Bytes(image)), Mirrors: []string{r.server.Serve("/a.raw.xz", fetchtest.Bytes(image))}}
	wantError(t, r.download(req), BadConfig, "a.raw.xz is packed as xz")
}

// TestDecompressionBombIsRefused checks that zeros are not limited, because they use no space, and
// that other bytes are limited.
func TestDecompressionBombIsRefused(t *testing.T) {
	race.Skip(t)
	const size = 80 << 20
	r := newFixture(t)
	zeros, ones := packWith(t, packedZst, make([]byte, size)), packWith(t, packedZst, bytes.Repeat([]byte{1}, size))
	if err := r.download(Request{URL: r.server.Serve("/zeros.zst", fetchtest.Bytes(zeros))}); err != nil {
		t.Errorf("%d zeros in %d bytes are refused: %v", size, len(zeros), err)
	}
	if err := r.disk.Remove(testID, disk.Mark{}); err != nil {
		t.Fatal(err)
	}
	err := r.download(Request{URL: r.server.Serve("/ones.zst", fetchtest.Bytes(ones))})
	wantError(t, err, BadSource, "more than 1000 times")
}

// TestHostileZstdFilesAreRefused checks that the sizes that a file claims, and what it unpacks to, cost
// little memory.
func TestHostileZstdFilesAreRefused(t *testing.T) {
	race.Skip(t)
	const magic, skippable = "\x28\xb5\x2f\xfd", "\x50\x2a\x4d\x18"
	rle := strings.Repeat("\x02\x00\x10\x01", 1<<20) // blocks of 128 KiB: 128 GiB in 4 MiB
	for name, packed := range map[string]string{
		"a window of 2^41 bytes":       magic + "\x00\xf8" + rle,
		"a window of 2^31 bytes":       magic + "\x00\xa8" + rle,
		"a content of 2^62 bytes":      magic + "\xe0\x00\x00\x00\x00\x00\x00\x00\x40" + rle,
		"blocks of one repeated byte":  magic + "\x00\x58" + rle,
		"many frames without bytes":    strings.Repeat(magic+"\x20\x00\x01\x00\x00", 1<<16),
		"only frames that are skipped": strings.Repeat(skippable+"\x00\x00\x00\x00", 1<<20),
		"a skipped frame of 4 GiB":     skippable + "\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			url := r.server.Serve("/image.raw.zst", fetchtest.Bytes([]byte(packed)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			wantError(t, r.download(Request{URL: url}), BadSource)
			runtime.ReadMemStats(&after)
			if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 64 {
				t.Errorf("%d MiB are allocated", allocated)
			}
			r.wantNoImage()
		})
	}
}

// TestLargeXzDictionaryIsRefused sets the dictionary size in the header of a later block to 4 GiB
// minus one byte.
func TestLargeXzDictionaryIsRefused(t *testing.T) {
	race.Skip(t)
	packed := packWith(t, packedXz, fetchtest.Random(4, 400<<10))
	later := packWith(t, packedXz, fetchtest.Random(5, 100<<10))
	const streamHeader = 12
	block := later[streamHeader:]
	block = block[:4*(int(block[0])+1)]
	block[bytes.Index(block, []byte{0x21, 0x01})+2] = 40
	checksum := block[len(block)-4:]
	binary.LittleEndian.PutUint32(checksum, crc32.ChecksumIEEE(block[:len(block)-4]))
	packed = append(packed, later...)
	r := newFixture(t)
	err := r.download(Request{URL: r.server.Serve("/image.xz", fetchtest.Bytes(packed))})
	wantError(t, err, BadSource, "dictionary")
}

// TestGzipFileSentWithContentEncoding accepts a server that sends an unchanged .gz file with
// Content-Encoding: gzip.
func TestGzipFileSentWithContentEncoding(t *testing.T) {
	race.Skip(t)
	r := newFixture(t)
	url := r.server.Serve("/image.raw.gz", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Gzip})
	if err := r.download(Request{URL: url}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

func TestCancelWhileUnpacking(t *testing.T) {
	r := newFixture(t)
	url := r.server.Serve("/image.raw.zst", fetchtest.Bytes(packWith(t, packedZst, image)), fetchtest.Fault{Kind: fetchtest.Stall, At: 1 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	var progress Progress
	go func() {
		for progress.Done.Load() < 1<<20 && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
	}()
	err := r.client.Download(ctx, Request{URL: url}, r.openPart(disk.PartOptions{}), &progress)
	if err != context.Canceled {
		t.Errorf("got %v, want %v alone", err, context.Canceled)
	}
}
