package disk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// TestPartFiller is not a test: it is the process that other tests start and kill. It prints the
// offset of its partial file, appends its input to the file, commits it, and prints its own peak
// memory.
func TestPartFiller(t *testing.T) {
	path := os.Getenv("DISK_TEST_PART")
	if path == "" {
		t.Skip("other tests run it")
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.OpenPart(context.Background(), testID, PartOptions{})
	if err == nil && p.Source() == (PartSource{}) {
		err = p.Begin(PartSource{ID: "x", Size: -1})
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("at", p.Offset())
	if _, err := p.ReadFrom(os.Stdin); err != nil {
		t.Fatal(err)
	}
	commitFilled(t, p)
}

// commitFilled commits the partial file of a filler, and prints the digest and the peak memory.
func commitFilled(t *testing.T, p *Part) {
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("made", c.SHA512)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	fmt.Println("memory", kib<<10)
}

// filler is a running TestPartFiller or TestSharingFiller.
type filler struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	offset int64
}

func startFiller(t *testing.T, d *Disk) *filler {
	t.Helper()
	return startFillerTest(t, d, "TestPartFiller")
}

func startFillerTest(t *testing.T, d *Disk, name string) *filler {
	t.Helper()
	f := &filler{t: t, cmd: exec.Command(os.Args[0], "-test.run", "^"+name+"$")}
	f.cmd.Env = append(os.Environ(), "DISK_TEST_PART="+d.Path())
	stdin, inErr := f.cmd.StdinPipe()
	stdout, outErr := f.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, f.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	f.stdin, f.stdout = stdin, bufio.NewReader(stdout)
	f.expect("at", &f.offset)
	return f
}

func (f *filler) expect(what string, value any) {
	f.t.Helper()
	line, err := f.stdout.ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, what+" %v\n", value); err != nil || scanErr != nil {
		rest, _ := io.ReadAll(f.stdout)
		f.t.Fatalf("the filler printed %q %s (%v), want %s", line, rest, err, what)
	}
}

func (f *filler) kill() {
	f.t.Helper()
	if err := f.cmd.Process.Kill(); err != nil {
		f.t.Fatal(err)
	}
	_ = f.cmd.Wait() // returns an error because the process was killed
}

// finish closes the input of the filler, and returns the digest and the peak memory that the filler
// prints.
func (f *filler) finish() (digest string, memory int64) {
	f.t.Helper()
	if err := f.stdin.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.expect("made", &digest)
	f.expect("memory", &memory)
	if err := f.cmd.Wait(); err != nil {
		f.t.Fatal(err)
	}
	return digest, memory
}

// TestKillLosesAtMost8MiB kills the process that writes a partial file many times, at random moments.
// Each kill must lose at most 8 MiB of the bytes that the process had read.
func TestKillLosesAtMost8MiB(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	const most = 8 << 20
	const pipe = 64 << 10 // bytes in the pipe that the process may not have read
	image := make([]byte, 48<<20)
	random := rand.New(rand.NewPCG(1, 2))
	rand.NewChaCha8([32]byte{3}).Read(image[:20<<20]) // a hole follows
	rand.NewChaCha8([32]byte{4}).Read(image[40<<20:])
	d := newDisk(t)
	kills, taken := 0, int64(0)
	for {
		f := startFiller(t, d)
		if f.offset < taken-pipe-most {
			t.Fatalf("kill %d: %d bytes were read before it, %d are kept", kills, taken-pipe, f.offset)
		}
		next := min(int64(len(image)), f.offset+1+random.Int64N(14<<20))
		n, err := f.stdin.Write(image[f.offset:next])
		if err != nil {
			t.Fatal(err)
		}
		if taken = f.offset + int64(n); taken == int64(len(image)) {
			if digest, _ := f.finish(); digest != digest512(image).String() {
				t.Errorf("the filler made the digest %s, want %s", digest, digest512(image))
			}
			break
		}
		f.kill()
		kills++
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, image) {
		t.Errorf("the image differs (error %v)", err)
	}
	if kills < 4 {
		t.Errorf("killed only %d times", kills)
	}
}

func TestMemoryDoesNotGrowWithImage(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector itself uses memory; CI also runs this test without it")
	}
	const large = 512 << 20
	peak := map[int64]int64{}
	for _, size := range []int64{64 << 20, large} {
		d := newDisk(t)
		f := startFiller(t, d)
		block := make([]byte, 16<<20)
		rand.NewChaCha8([32]byte{5}).Read(block[:1<<20])
		if _, err := io.Copy(f.stdin, repeat(block, size)); err != nil {
			t.Fatal(err)
		}
		_, peak[size] = f.finish()
	}
	if peak[large] > peak[64<<20]+8<<20 {
		t.Errorf("64 MiB need %d bytes of memory, %d MiB need %d", peak[64<<20], large>>20, peak[large])
	}
	if peak[large] > 64<<20 {
		t.Errorf("%d MiB need %d bytes of memory", large>>20, peak[large])
	}
}
