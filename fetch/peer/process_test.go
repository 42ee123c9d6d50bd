package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestMain makes other processes of the test binary: senders and receivers, whose
// processors, memory and network are their own.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("PEER_TEST_ROLE") {
	case "send":
		err = childSend(os.Args[1], os.Args[2], os.Args[3])
	case "pull":
		err = childPull(os.Args[1], os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command returns a process of this binary with a role. It ends with the test.
func command(tb testing.TB, role string, before []string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	line := append(append(before, program), args...)
	c := exec.Command(line[0], line[1:]...)
	c.Env = append(os.Environ(), "PEER_TEST_ROLE="+role)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// childSend serves disk1 at path under the name of a node, and prints where.
func childSend(node, path, listen string) error {
	d, err := disk.Open(path)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	s := NewServer(NewStateCache(), &testNode{name: node, disk: d})
	fmt.Printf("http://%s\n", l.Addr())
	return http.Serve(l, s.Handler())
}

// sender is a process that sends.
type sender struct {
	*exec.Cmd
	source Source
}

// startSender starts one; before is put before its command line.
func startSender(tb testing.TB, node string, d *disk.Disk, listen string, before ...string) *sender {
	tb.Helper()
	c := command(tb, "send", before, node, d.Path(), listen)
	out, err := c.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("sender does not say where it listens: %v", err)
	}
	copyOf := d.Stat(parrot)
	return &sender{c, Source{
		Address: Address{Node: node, URL: strings.TrimSpace(url)}, Disk: "disk1", ID: parrot, ManifestDigest: copyOf.ManifestDigest,
	}}
}

// pullJob is what a receiving process is to do.
type pullJob struct {
	Sources  []Source
	Size     int64
	Digest   disk.Digest
	NotifyAt int64 // when so many bytes are in the part; 0: not at all
}

// pullResult is what it did.
type pullResult struct {
	Seconds      float64 // to a copy that is durable and ready
	Received     int64   // bytes from peers
	RSS          int64   // the most bytes that were in memory at once, by its parent
	Warned       []string
	CPU          time.Duration // of the process, by its parent
	LongestPause float64       // the longest time in which the image did not grow, in seconds
}

// childPull does what the order says into a new disk in path, until the image is
// ready.
func childPull(path string, args []string) error {
	var o pullJob
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return err
	}
	if _, err := disk.Init(path); err != nil {
		return err
	}
	d, err := disk.Open(path)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var done pullResult
	p := &Pull{
		Client: NewClient(nil, nil), Sources: func() []Source { return o.Sources }, Progress: new(fetch.Progress),
		Warn: func(err error) { done.Warned = append(done.Warned, err.Error()) },
	}
	ended := make(chan struct{})
	pauses := measurePauses(p.Progress, ended, o.NotifyAt)
	begun := time.Now()
	part, err := d.OpenPart(ctx, parrot, disk.PartOptions{})
	if err == nil {
		err = p.Into(ctx, part, o.Size)
	}
	if err == nil {
		_, err = part.Commit(o.Digest)
	}
	if err != nil {
		return err
	}
	done.Seconds = time.Since(begun).Seconds()
	close(ended)
	done.LongestPause = <-pauses
	done.Received = p.Progress.PeerBytes.Load()
	if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until what there is to see of it is seen
	return err
}

// measurePauses returns the longest pause when ended is closed. It prints a line when
// tell bytes are there.
func measurePauses(p *fetch.Progress, ended <-chan struct{}, tell int64) <-chan float64 {
	longest := make(chan float64, 1)
	go func() {
		var most time.Duration
		last, since := int64(0), time.Now()
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ended:
				longest <- most.Seconds()
				return
			}
			now := p.Done.Load()
			if tell > 0 && now >= tell {
				fmt.Println("told")
				tell = 0
			}
			if now != last {
				last, since = now, time.Now()
			}
			most = max(most, time.Since(since))
		}
	}()
	return longest
}

// peakRSS returns the most bytes of a process that were in memory at once: what
// getrusage says begins with the memory of its parent.
func peakRSS(tb testing.TB, pid int) int64 {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		tb.Fatal(err)
	}
	return kib << 10
}

// pullInProcess runs a receiver and returns what it did. It calls told when as much is
// there as the order says. before is put before the command line.
func pullInProcess(tb testing.TB, path string, o pullJob, told func(), before ...string) pullResult {
	tb.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	c := command(tb, "pull", before, path, string(text))
	pipe, err := c.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdin, err := c.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	if o.NotifyAt > 0 {
		if _, err := out.ReadString('\n'); err == nil {
			told()
		}
	}
	var done pullResult
	err = json.NewDecoder(out).Decode(&done)
	if err == nil {
		done.RSS = peakRSS(tb, c.Process.Pid)
	}
	stdin.Close()
	if failed := c.Wait(); err != nil || failed != nil {
		tb.Fatalf("receiver: %v, it says: %v", failed, err)
	}
	done.CPU = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	return done
}

// newDisk makes an empty disk.
func newDisk(tb testing.TB) *disk.Disk {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "disk")
	if err := os.Mkdir(path, 0o755); err != nil {
		tb.Fatal(err)
	}
	if _, err := disk.Init(path); err != nil {
		tb.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.Close() })
	return d
}

// fillDisk makes a ready copy of what r brings.
func fillDisk(tb testing.TB, d *disk.Disk, size int64, r io.Reader) disk.Copy {
	tb.Helper()
	p, err := d.OpenPart(tb.Context(), parrot, disk.PartOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: size}); err != nil {
		tb.Fatal(err)
	}
	if _, err := p.ReadFrom(r); err != nil {
		tb.Fatal(err)
	}
	c, err := p.Commit(disk.Digest{})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

var discardLog = log.New(io.Discard, "", 0)
