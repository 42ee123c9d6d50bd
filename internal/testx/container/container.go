// Package container runs processes in tests with runc, which Kubernetes uses too.
package container

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// Container is a process without capabilities in its own namespaces.
type Container struct {
	Args            []string
	Env             []string
	UID, GID        int64
	Groups          []int64
	Memory          int64 // limit of the control group in bytes
	Network         netns.Namespace
	Mounts          []Mount
	RootFS          string
	ReadOnly        bool // for the root file system; Mounts have their own options
	Hostname        string
	NoNewPrivileges bool
	Umask           uint32
	Seccomp         *Seccomp      // nil: all system calls are allowed
	Proc            []string      // options of /proc
	UserNamespace   bool          // with root and UID as they are outside; files of all other owners belong to nobody
	StopTimeout     time.Duration // maximum time between SIGTERM and the end of the process

	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan struct{}
}

// Seccomp is the filter of system calls in the OCI runtime specification.
type Seccomp struct {
	DefaultAction   string     `json:"defaultAction"`
	DefaultErrnoRet uint       `json:"defaultErrnoRet"`
	Architectures   []string   `json:"architectures,omitempty"` // none: that of this machine
	Syscalls        []Syscalls `json:"syscalls"`
}

// Syscalls is what happens to some system calls. With Args, it applies to calls of which all arguments match.
type Syscalls struct {
	Names    []string `json:"names"`
	Action   string   `json:"action"`
	ErrnoRet *uint    `json:"errnoRet,omitempty"`
	Args     []Arg    `json:"args,omitempty"`
}

// Arg compares an argument of a system call.
type Arg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo,omitempty"`
	Op       string `json:"op"`
}

// Mount is a folder or a file that the container sees.
type Mount struct {
	Source, Target string
	Options        []string
}

var started atomic.Int64 // number of containers of this process

// Start starts the container, which runs until Stop or the end of the test. If runc cannot run
// containers on this machine, it skips the test.
func (c *Container) Start(t testing.TB) {
	t.Helper()
	need.Containers(t)
	dir := t.TempDir()
	id := fmt.Sprintf("bim-%d-%d", os.Getpid(), started.Add(1))
	config, err := json.Marshal(c.config(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	c.cmd = exec.Command("runc", "--root", state, "run", "--bundle", dir, id)
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.exited = make(chan struct{})
	go func() {
		_ = c.cmd.Wait() // Stop checks the exit code
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = exec.Command("runc", "--root", state, "delete", "--force", id).Run() // fails if Stop was called
		<-c.exited
		if t.Failed() {
			t.Logf("output of %q:\n%s", c.Args, &c.output)
		}
	})
}

// Stop stops the container like kubelet and systemd. It fails the test unless the process exits with
// code 0 within StopTimeout.
func (c *Container) Stop(t testing.TB) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case <-c.exited:
	case <-time.After(c.StopTimeout):
		t.Errorf("%q still runs after %v", c.Args, c.StopTimeout)
		return
	}
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%q exited with %d", c.Args, code)
	}
}

// Wait waits until the process ends by itself, and returns what it wrote and its exit code.
func (c *Container) Wait(t testing.TB) (output string, code int) {
	t.Helper()
	select {
	case <-c.exited:
	case <-time.After(c.StopTimeout):
		t.Fatalf("%q still runs after %v", c.Args, c.StopTimeout)
	}
	return c.output.String(), c.cmd.ProcessState.ExitCode()
}

// config returns the config.json of the OCI runtime specification.
func (c *Container) config(id string) map[string]any {
	none := []string{}
	mounts := []map[string]any{
		{"destination": "/proc", "type": "proc", "source": "proc", "options": c.Proc},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=65536k"}},
	}
	for _, m := range c.Mounts {
		mounts = append(mounts, map[string]any{"destination": m.Target, "type": "bind", "source": m.Source, "options": append([]string{"rbind"}, m.Options...)})
	}
	namespaces := []map[string]any{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network", "path": filepath.Join("/run/netns", string(c.Network))}}
	var ids []map[string]any
	if c.UserNamespace {
		namespaces = append(namespaces, map[string]any{"type": "user"})
		for _, id := range slices.Compact([]int64{0, c.UID}) {
			ids = append(ids, map[string]any{"containerID": id, "hostID": id, "size": 1})
		}
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": c.UID, "gid": c.GID, "additionalGids": c.Groups, "umask": c.Umask}, "cwd": "/",
			"args": c.Args, "env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, c.Env...),
			"capabilities":    map[string]any{"bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none},
			"noNewPrivileges": c.NoNewPrivileges,
		},
		"hostname": c.Hostname,
		"root":     map[string]any{"path": c.RootFS, "readonly": c.ReadOnly},
		"mounts":   mounts,
		"linux": map[string]any{
			"cgroupsPath": "/" + id,
			"namespaces":  namespaces, "uidMappings": ids, "gidMappings": ids, "seccomp": c.Seccomp,
			"resources":   map[string]any{"memory": map[string]any{"limit": c.Memory}},
			"maskedPaths": []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi"}, "readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
