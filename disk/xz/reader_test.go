package xz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	ulikunitz "github.com/ulikunitz/xz"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

const maxDictionary = 64 << 20

// unpack returns the unpacked bytes of r, with at most so many blocks at the same time.
func unpack(r io.Reader, workers int) ([]byte, error) {
	x := NewReader(r, maxDictionary, workers)
	defer x.Close()
	return io.ReadAll(x)
}

// program returns bytes of this test, which is code.
func program(t testing.TB, size int64) []byte {
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pack packs b with the program xz.
func pack(t testing.TB, b []byte, options string) []byte {
	cmd := need.Command(t, "xz", append(strings.Fields(options), "-c")...)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// packHere packs b in two streams of several blocks, which do not have their sizes.
func packHere(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	for half := range 2 {
		w, err := ulikunitz.WriterConfig{BlockSize: int64(len(b)/4 + 1), DictCap: 1 << 16}.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b[half*len(b)/2 : (half+1)*len(b)/2]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestReaderUnpacksWhatXzPacks(t *testing.T) {
	code := program(t, 1<<20)
	for _, options := range []string{
		"-0", "-6", "-T2 --block-size=300KiB", "-1 -T2 --block-size=99999 --check=none", "-1 -T1 --block-size=100KiB",
		"-0 --check=none", "-0 --check=crc32", "-0 --check=sha256", "--lzma2=preset=0,dict=4KiB", "--lzma2=preset=1,lc=0,lp=4,pb=0",
		"--lzma2=preset=1,lc=1,lp=3,pb=4", "--lzma2=preset=1,lc=4,pb=1", "--x86 --lzma2=preset=1", "-T2 --block-size=300KiB --x86 --lzma2=preset=1",
	} {
		t.Run(options, func(t *testing.T) {
			packed := pack(t, code, options)
			for _, workers := range []int{1, 3} {
				got, err := unpack(bytes.NewReader(packed), workers)
				if err != nil || !bytes.Equal(got, code) {
					t.Errorf("%d workers: got %d bytes, %v", workers, len(got), err)
				}
			}
		})
	}
}

func TestReaderUnpacksEachKindOfChunk(t *testing.T) {
	code := program(t, 600<<10)
	random := pack(t, code, "-9") // does not compress again
	zeros := make([]byte, 9<<20)
	all := bytes.Join([][]byte{zeros, random, code, random[:1000], zeros[:5], random, code[:70000]}, nil)
	packed := bytes.Join([][]byte{pack(t, all, "-1"), make([]byte, 8), pack(t, nil, ""), packHere(t, all), make([]byte, 4)}, nil)
	for _, workers := range []int{1, 2} {
		got, err := unpack(iotest.HalfReader(bytes.NewReader(packed)), workers)
		if err != nil || !bytes.Equal(got, append(bytes.Clone(all), all...)) {
			t.Errorf("%d workers: got %d bytes, %v", workers, len(got), err)
		}
	}
}

// TestEachDamageIsAnError changes and cuts a file at each byte.
func TestEachDamageIsAnError(t *testing.T) {
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 30)
	for name, packed := range map[string][]byte{
		"sizes": pack(t, text, "-T2 --block-size=400"), "no sizes": packHere(t, text), "x86": pack(t, text, "--x86 --lzma2"),
	} {
		for i := range packed {
			for _, workers := range []int{1, 2} {
				wrong := bytes.Clone(packed)
				wrong[i] ^= 1 << (i % 8)
				if _, err := unpack(bytes.NewReader(wrong), workers); err == nil {
					t.Errorf("%s: a change of byte %d of %d is not detected", name, i, len(packed))
				}
				_, err := unpack(bytes.NewReader(packed[:i]), workers)
				if complete := name == "no sizes" && i > 0 && err == nil && bytes.HasPrefix(packed[i:], []byte(headerMagic)); err != io.ErrUnexpectedEOF && !complete {
					t.Errorf("%s: cut at byte %d of %d: got %v", name, i, len(packed), err)
				}
			}
		}
		for _, more := range []string{"\x00", "\x00\x00\x00\x00\x00", "garbage", "\x00\x00\x00\x00garbage", headerMagic} {
			if _, err := unpack(strings.NewReader(string(packed)+more), 2); err == nil {
				t.Errorf("%s: %q behind the file is not detected", name, more)
			}
		}
	}
}

// TestHostileHeaders replaces the header of a block by another one with a correct checksum.
func TestHostileHeaders(t *testing.T) {
	const most, lzma2 = "\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\x21\x01\x16"
	packed := pack(t, []byte("text"), "-T1")
	stream, data := packed[:12], packed[12+4*(int(packed[12])+1):]
	for header, want := range map[string]string{
		"\x3c" + lzma2:                     "the flags of a block are not known",
		"\x00\x03\x01\x00":                 "the filters are not supported",
		"\x00" + lzma2 + "\x01":            "the padding of the header of a block is not zero",
		"\x00\x21\x01\x29":                 "the size of the dictionary is invalid",
		"\x00\x21\x01\x28":                 "the dictionary is too large",
		"\xc0" + most + most + lzma2:       "a block does not have the size in its header",
		"\xc0\x7f" + most + lzma2:          "unexpected EOF|a block does not have the size in its header",
		"\xc0\x08\x03" + lzma2:             "a block does not have the size in its header",
		"\x40" + most[:8] + "\xff" + lzma2: "a number is invalid",
		"\x01\x21":                         "the header of a block is too short|the filters are not supported",
	} {
		header = "\x00" + header
		header += "\x00\x00\x00"[:-len(header)&3]
		b := append([]byte{byte(len(header) / 4)}, header[1:]...)
		b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		for _, workers := range []int{1, 2} {
			_, err := unpack(bytes.NewReader(bytes.Join([][]byte{stream, b, data}, nil)), workers)
			if err == nil || !slices.ContainsFunc(strings.Split(want, "|"), func(w string) bool { return strings.Contains(err.Error(), w) }) {
				t.Errorf("%q, %d workers: got %v, want %s", header, workers, err, want)
			}
		}
	}
}

func TestReaderReturnsTheErrorOfTheInput(t *testing.T) {
	packed := pack(t, program(t, 600<<10), "-1 -T2 --block-size=200KiB")
	broken := errors.New("broken")
	r := io.MultiReader(bytes.NewReader(packed[:len(packed)-100]), iotest.ErrReader(broken))
	if got, err := unpack(r, 2); err != broken || len(got) < 400<<10 {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// TestCloseStopsTheDecoders closes readers in the middle. The end of a bubble is the end of all its
// goroutines.
func TestCloseStopsTheDecoders(t *testing.T) {
	packed := pack(t, program(t, 2<<20), "-0 -T2 --block-size=200KiB")
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int64{0, 1, 1 << 20} {
			r := NewReader(bytes.NewReader(packed), maxDictionary, 3)
			if _, err := io.CopyN(io.Discard, r, n); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			for _, j := range r.queue {
				select {
				case <-j.done:
				default:
					t.Error("a decoder runs after Close")
				}
			}
		}
	})
}

// FuzzReader compares the decoder with another one, and several decoders at the same time with one.
func FuzzReader(f *testing.F) {
	text := bytes.Repeat([]byte("the quick brown fox \xe8\x00\x01\x00\x00"), 30)
	f.Add(packHere(f, text))
	for _, options := range []string{"-T2 --block-size=300", "--x86 --lzma2=dict=4KiB", "--check=sha256", "--check=none"} {
		f.Add(pack(f, text, options))
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		const limit = 4 << 20
		read := func(workers int) ([]byte, error) {
			r := NewReader(bytes.NewReader(packed), 1<<20, workers)
			defer r.Close()
			return io.ReadAll(io.LimitReader(r, limit))
		}
		got, err := read(1)
		if parallel, parallelErr := read(2); (err == nil) != (parallelErr == nil) || err == nil && !bytes.Equal(got, parallel) {
			t.Errorf("got %d bytes, %v, with 2 workers %d bytes, %v", len(got), err, len(parallel), parallelErr)
		}
		if err != nil || len(got) == limit {
			return
		}
		r, err := ulikunitz.NewReader(bytes.NewReader(packed))
		if err != nil {
			return
		}
		if want, err := io.ReadAll(r); err == nil && !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want %d other bytes", len(got), len(want))
		}
	})
}

// Blocks of several sizes follow each other, so that the buffers of jobs are used for smaller and larger blocks.
func TestBuffersOfBlocksAreLimited(t *testing.T) {
	code := program(t, 2<<20)
	var packed []byte
	for _, size := range []int{64, 512, 16, 300, 300, 300, 1024, 8, 8, 8, 8, 2048, 512, 512, 512, 512} { // KiB
		packed = append(packed, pack(t, code[:size<<10], "-1 -T2 --block-size=2MiB")...)
	}
	const maxAhead = 1200 << 10
	r := NewReader(bytes.NewReader(packed), maxDictionary, 3)
	defer r.Close()
	r.maxAhead = maxAhead
	most, blocks := int64(0), 0
	for {
		p, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > 0 {
			blocks++
		}
		sum := int64(0)
		jobs := append(slices.Concat(r.queue, r.free), r.last)
		for _, j := range jobs {
			if j == nil {
				continue
			}
			if j.done != nil {
				<-j.done
			}
			sum += int64(cap(j.packed)) + int64(len(j.data.buf))
		}
		most = max(most, sum)
		if allowed := maxAhead + int64(len(jobs))*1024; sum > allowed || r.memory > maxAhead { // checksums and slack
			t.Fatalf("the buffers have %d bytes, want at most %d", sum, allowed)
		}
	}
	if most < maxAhead/2 || blocks < 16 {
		t.Errorf("%d times bytes of blocks, with buffers of at most %d bytes: the test is too small", blocks, most)
	}
}
