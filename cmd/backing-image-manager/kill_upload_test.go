package main

import (
	"bytes"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

var killUploads = flag.Int("kill.uploads", 10, "how often TestKilledUploadResumes kills a daemon or a client")

// process is a running command of the program.
type process struct {
	*exec.Cmd
	output bytes.Buffer // stdout and stderr; read it only after the end
	ended  chan struct{}
	err    error // set before ended is closed
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("backing-image-manager", args...), ended: make(chan struct{})}
	p.Stdout, p.Stderr = &p.output, &p.output
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	return p
}

func (p *process) kill() {
	_ = p.Process.Kill() // it may have ended
	<-p.ended
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// waitUntilListening waits until the daemon listens at the address.
func waitUntilListening(t *testing.T, address string, daemon *process) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return
		}
		select {
		case <-daemon.ended:
			t.Fatalf("the daemon ended: %v\n%s", daemon.err, daemon.output.Bytes())
		case <-late:
			t.Fatal("the daemon does not listen")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// setVictim makes the proxy kill a process at one of the next requests, or none for nil.
func (s *killingProxy) setVictim(victim *process, random *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.victim, s.left = nil, never
	if victim != nil {
		s.victim, s.left, s.moment = victim.Process, 1+random.IntN(4), moments[random.IntN(len(moments))]
	}
}

// The daemon and the client of one upload are killed by SIGKILL again and again, in the middle of
// their requests and responses. In the end the disk must have the image, and nothing else.
func TestKilledUploadResumes(t *testing.T) {
	skipKilled(t)
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	s := newKillingProxy("http://" + address)
	proxy := httptest.NewServer(s)
	defer proxy.Close()
	random := rand.New(rand.NewPCG(*killSeed, 2))
	conf, data, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "parrot.raw")
	image := fetchtest.Random(8, 98<<20+512)
	clear(image[20<<20 : 31<<20])
	for path, content := range map[string][]byte{file: image, filepath.Join(conf, "images.yaml"): []byte("images: {parrot: {source: {upload: {}}}}")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := disk.Init(data); err != nil {
		t.Fatal(err)
	}

	var daemon, client *process
	daemonKills, clientKills := 0, 0
	for kills := 0; ; kills++ {
		if daemon == nil || daemon.hasEnded() {
			daemon = startProcess(t, "daemon", "--config-dir", conf, "--disk", data, "--listen", address, "--interval", "200ms")
			waitUntilListening(t, address, daemon)
		}
		if client == nil {
			client = startProcess(t, "backing-image", "upload", "parrot", file, "--url", proxy.URL)
		}
		victim := client
		if random.IntN(2) == 0 {
			victim = daemon
		}
		if kills >= *killUploads {
			victim = nil
		}
		s.setVictim(victim, random)
		select {
		case <-daemon.ended:
			daemonKills++
			continue
		case <-client.ended:
		}
		if client.err != nil && (victim != client || client.ProcessState.ExitCode() >= 0) {
			t.Fatalf("the client ends with %v after %d kills:\n%s", client.err, kills, client.output.Bytes())
		}
		if client.err == nil {
			break
		}
		clientKills++
		client = nil
	}
	t.Logf("the daemon was killed %d times, the client %d times", daemonKills, clientKills)
	s.setVictim(nil, nil)
	left, err := http.Get(proxy.URL + "/v1/uploads")
	if err != nil {
		t.Fatal(err)
	}
	defer left.Body.Close()
	if list, err := io.ReadAll(left.Body); err != nil || strings.TrimSpace(string(list)) != "[]" {
		t.Errorf("unfinished uploads: %s, error %v", list, err)
	}
	checkOnlyImage(t, data, image)
}

// checkOnlyImage checks that the disk has one ready image with these bytes, and nothing else.
func checkOnlyImage(t *testing.T, data string, want []byte) {
	t.Helper()
	var names []string
	found, err := filepath.Glob(filepath.Join(data, "backing-images", "*", "*"))
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	if !slices.Equal(names, []string{"backing", "backing.cfg", "backing.chunks", "backing.record"}) {
		t.Fatalf("the disk has the files %q, error %v", found, err)
	}
	if got, err := os.ReadFile(found[0]); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the image has %d bytes, which are not the %d that were sent (error %v)", len(got), len(want), err)
	}
	d, err := disk.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if list, err := d.List(); err != nil || len(list.Copies) != 1 || list.Copies[0].State != model.Ready || len(list.Unmanaged) > 0 {
		t.Errorf("the disk has %+v, error %v", list, err)
	}
}
