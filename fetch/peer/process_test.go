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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestMain also runs the test binary as a sender or a receiver, so that the CPU time, the memory and
// the network namespace of the process can be measured and controlled separately.
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

// command returns a process of this binary with a role. The command line begins with prefix. The
// process ends with the test binary.
func command(tb testing.TB, role string, prefix []string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	line := append(append(prefix, program), args...)
	c := exec.Command(line[0], line[1:]...)
	c.Env = append(os.Environ(), "PEER_TEST_ROLE="+role)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// childSend serves the disk at path as disk1 of a node, and prints its URL.
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

// sender is a process with a Server.
type sender struct {
	*exec.Cmd
	source Source
}

// startSender starts a sender. Its command line begins with prefix.
func startSender(tb testing.TB, node string, d *disk.Disk, listen string, prefix ...string) *sender {
	tb.Helper()
	c := command(tb, "send", prefix, node, d.Path(), listen)
	out, err := c.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.Process.Kill() // fails if the process has already ended
		_ = c.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("the sender printed no URL: %v", err)
	}
	return &sender{c, Source{
		Address: Address{Node: node, URL: strings.TrimSpace(url)}, Disk: "disk1", ID: parrot, ManifestDigest: d.Stat(parrot).ManifestDigest, Size: d.Stat(parrot).Size,
	}}
}

// pullJob is the input of a receiver process.
type pullJob struct {
	Sources  []Source
	Size     int64
	Digest   ident.Digest
	NotifyAt int64 // prints a line when the partial file has this number of bytes; 0: never
}

// pullResult is the output of a receiver process.
type pullResult struct {
	Seconds      float64 // until the copy is durable and ready
	Received     int64   // bytes from peers
	RSS          int64   // peak memory in bytes; the parent process sets it
	Warned       []string
	CPU          time.Duration // the parent process sets it
	LongestPause float64       // longest time in seconds in which the partial file did not grow
}

// childPull creates a disk at path and pulls the image of the pullJob in args[0] to it.
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
	start := time.Now()
	part, err := d.OpenPart(ctx, parrot, disk.PartOptions{})
	if err == nil {
		err = p.Into(ctx, part)
	}
	if err == nil {
		_, err = part.Commit(o.Digest)
	}
	if err != nil {
		return err
	}
	done.Seconds = time.Since(start).Seconds()
	close(ended)
	done.LongestPause = <-pauses
	done.Received = p.Progress.PeerBytes.Load()
	if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // wait until the parent has measured this process
	return err
}

// measurePauses sends the longest pause when ended is closed. If notifyAt is not 0, it prints a line
// when the partial file has notifyAt bytes.
func measurePauses(p *fetch.Progress, ended <-chan struct{}, notifyAt int64) <-chan float64 {
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
			if notifyAt > 0 && now >= notifyAt {
				fmt.Println("reached")
				notifyAt = 0
			}
			if now != last {
				last, since = now, time.Now()
			}
			most = max(most, time.Since(since))
		}
	}()
	return longest
}

// peakRSS returns the peak resident memory of a process. It does not use getrusage, which begins with
// the memory of the parent process.
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

// pullInProcess runs a receiver process. It calls notify when the partial file has o.NotifyAt bytes.
// The command line begins with prefix.
func pullInProcess(tb testing.TB, path string, o pullJob, notify func(), prefix ...string) pullResult {
	tb.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	c := command(tb, "pull", prefix, path, string(text))
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
			notify()
		}
	}
	var done pullResult
	err = json.NewDecoder(out).Decode(&done)
	if err == nil {
		done.RSS = peakRSS(tb, c.Process.Pid)
	}
	stdin.Close()
	if failed := c.Wait(); err != nil || failed != nil {
		tb.Fatalf("receiver: %v, output: %v", failed, err)
	}
	done.CPU = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	return done
}

// newDisk creates an empty disk.
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

// fillDisk creates a ready copy with the bytes of r.
func fillDisk(tb testing.TB, d *disk.Disk, size int64, r io.Reader) model.Copy {
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
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

var discardLog = log.New(io.Discard, "", 0)
