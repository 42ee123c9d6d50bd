package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// managers are the daemons that a script has started and not stopped, by their nodes.
type managers map[string]*exec.Cmd

type managersKey struct{}

// makeCluster makes nodes, see script_test.go.
func makeCluster(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: cluster N")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	var nodes strings.Builder
	fmt.Fprintln(&nodes, "nodes:")
	for i := 1; i <= n; i++ {
		name := fmt.Sprint("node", i)
		at := freeAddress(ts, fmt.Sprintf("127.0.0.%d", i))
		ts.Setenv(fmt.Sprint("AT", i), at)
		ts.Setenv(fmt.Sprint("URL", i), "http://"+at)
		fmt.Fprintf(&nodes, "  %s:\n    address: http://%s\n    disks:\n", name, at)
		for _, d := range []string{"disk1", "disk2"} {
			path := ts.MkAbs(filepath.Join(name, d))
			ts.Check(os.MkdirAll(path, 0o755))
			_, err := disk.Init(path)
			ts.Check(err)
			fmt.Fprintf(&nodes, "      %s: {path: %q}\n", d, path)
		}
	}
	writeAtOnce(ts, "conf/nodes.yaml", nodes.String())
}

func freeAddress(ts *testscript.TestScript, host string) string {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	ts.Check(err)
	ts.Check(l.Close())
	return l.Addr().String()
}

// start starts daemons, see script_test.go.
func start(ts *testscript.TestScript, neg bool, args []string) {
	names := args
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			names = args[:i]
			break
		}
	}
	if neg || len(names) == 0 {
		ts.Fatalf("usage: start NODE... [FLAG]...")
	}
	for _, name := range names {
		startManager(ts, name, args[len(names):])
	}
}

// programOf is what a node runs. With the race detector one of a cluster is enough.
func programOf(node string) string {
	if race.Enabled && node != "node1" {
		dir, _ := plain() // TestScript has seen whether that works
		return filepath.Join(dir, "backing-image-manager")
	}
	return "backing-image-manager"
}

func startManager(ts *testscript.TestScript, name string, flags []string) {
	all := ts.Value(managersKey{}).(managers)
	if all[name] != nil {
		ts.Fatalf("%s runs already", name)
	}
	cmd := exec.Command(programOf(name), append([]string{
		"daemon", "--config-dir", "conf", "--node", name, "--listen", ts.Getenv("AT" + strings.TrimPrefix(name, "node")),
		"--interval", "1s", "--log-file", name + ".log",
	}, flags...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"GORACE=" + ts.Getenv("GORACE"), "PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "TMPDIR=" + ts.Getenv("TMPDIR")}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, io.Discard // the log has a file
	ts.Check(cmd.Start())
	all[name] = cmd
	ts.Defer(func() {
		if all[name] == cmd {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		log, _ := os.ReadFile(filepath.Join(cmd.Dir, name+".log"))
		ts.Logf("[%s]\n%s", name, log[max(0, len(log)-4000):])
	})
}

// halt ends daemons, see script_test.go.
func halt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: halt NODE...")
	}
	for _, name := range args {
		ts.Check(manager(ts, name).Process.Signal(os.Interrupt))
	}
	for _, name := range args {
		ts.Check(gone(ts, name))
	}
}

// crash kills daemons, see script_test.go.
func crash(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: crash NODE...")
	}
	for _, name := range args {
		ts.Check(manager(ts, name).Process.Kill())
	}
	for _, name := range args {
		if err := gone(ts, name); err == nil {
			ts.Fatalf("%s had ended by itself", name)
		}
	}
}

func manager(ts *testscript.TestScript, name string) *exec.Cmd {
	cmd := ts.Value(managersKey{}).(managers)[name]
	if cmd == nil {
		ts.Fatalf("%s does not run", name)
	}
	return cmd
}

// gone waits for the end of a daemon.
func gone(ts *testscript.TestScript, name string) error {
	err := manager(ts, name).Wait()
	delete(ts.Value(managersKey{}).(managers), name)
	return err
}
