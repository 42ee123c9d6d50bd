package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience is for what comes at once on a machine that has nothing else to do.
const patience = 60 * time.Second

// container is a process as runc starts it, which is what starts those of Kubernetes too.
type container struct {
	args        []string
	env         []string
	uid, gid    int64
	groups      []int64
	memory      int64  // the most it may have, of everything
	network     string // the namespace
	binds       []bind
	rootfs      string
	hostname    string
	stayAsIs    bool // it may get no more rights than it has
	readOnly    bool // but for the binds
	cmd         *exec.Cmd
	log         bytes.Buffer
	id          string
	exited      chan struct{}
	terminating time.Duration // how long it may take to end
}

// bind is a folder or a file of the test that a container sees.
type bind struct {
	from, at string
	options  []string
}

var started atomic.Int64 // containers

// start runs the container until the test ends, or stop is called.
func (c *container) start(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	c.id = fmt.Sprintf("bim-%d-%d", os.Getpid(), started.Add(1))
	config, err := json.Marshal(c.config())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), string(config))
	state := filepath.Join(dir, "state")
	c.cmd = exec.Command("runc", "--root", state, "run", "--bundle", dir, c.id)
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.exited = make(chan struct{})
	go func() {
		_ = c.cmd.Wait() // its code is looked at when it is stopped
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = exec.Command("runc", "--root", state, "delete", "--force", c.id).Run() // it has ended, if all is well
		<-c.exited
		if t.Failed() {
			t.Logf("%q says:\n%s", c.args, &c.log)
		}
	})
}

// stop ends it as a kubelet and as systemd do, and it has to agree.
func (c *container) stop(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case <-c.exited:
	case <-time.After(c.terminating):
		t.Errorf("it goes on after %v", c.terminating)
		return
	}
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

func (c *container) config() map[string]any {
	none := []string{}
	mounts := []map[string]any{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=65536k"}},
	}
	for _, b := range c.binds {
		mounts = append(mounts, map[string]any{"destination": b.at, "type": "bind", "source": b.from, "options": append([]string{"rbind"}, b.options...)})
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": c.uid, "gid": c.gid, "additionalGids": c.groups}, "cwd": "/",
			"args": c.args, "env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, c.env...),
			"capabilities":    map[string]any{"bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none},
			"noNewPrivileges": c.stayAsIs,
		},
		"hostname": c.hostname,
		"root":     map[string]any{"path": c.rootfs, "readonly": c.readOnly},
		"mounts":   mounts,
		"linux": map[string]any{
			"cgroupsPath": "/" + c.id,
			"namespaces":  []map[string]any{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network", "path": "/run/netns/" + c.network}},
			"resources":   map[string]any{"memory": map[string]any{"limit": c.memory}},
			"maskedPaths": []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi"}, "readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, line ...string) string {
	t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", line, err, out)
	}
	return string(out)
}
