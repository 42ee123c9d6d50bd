package script

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var clusterCommands = []command{
	{name: "cluster", args: "N", min: 1, max: 1, run: makeCluster,
		doc: "Creates the nodes node1 to nodeN, each with the disks NODE/disk1 and NODE/disk2, and declares them in conf/nodes.yaml. $AT1 (HOST:PORT) and $URL1 are the address of node1; node2 has the address 127.0.0.2, and so on."},
	{name: "start", args: "NODE... [FLAG]...", min: 1, max: -1, run: start,
		doc: "Starts the daemon of each node, with the configuration of conf, `--interval 1s`, and a log in NODE.log."},
	{name: "halt", args: "NODE...", min: 1, max: -1, run: halt,
		doc: "Stops the daemons with SIGINT and asserts that they exit with 0."},
	{name: "crash", args: "NODE...", min: 1, max: -1, run: crash,
		doc: "Kills the daemons with SIGKILL."},
}

func makeCluster(s script, args []string) error {
	n, err := strconv.Atoi(args[0])
	s.Check(err)
	var nodes strings.Builder
	fmt.Fprintln(&nodes, "nodes:")
	for i := 1; i <= n; i++ {
		name := fmt.Sprint("node", i)
		at, err := freeport.Address(fmt.Sprintf("127.0.0.%d", i))
		if err != nil {
			return err
		}
		s.Setenv(fmt.Sprint("AT", i), at)
		s.Setenv(fmt.Sprint("URL", i), "http://"+at)
		fmt.Fprintf(&nodes, "  %s:\n    address: http://%s\n    disks:\n", name, at)
		for _, d := range []string{"disk1", "disk2"} {
			path := s.MkAbs(filepath.Join(name, d))
			if err := initDisk(path); err != nil {
				return err
			}
			fmt.Fprintf(&nodes, "      %s: {path: %q}\n", d, path)
		}
	}
	return writeFile(s.MkAbs("conf/nodes.yaml"), nodes.String())
}

func start(s script, args []string) error {
	names := args
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			names = args[:i]
			break
		}
	}
	for _, name := range names {
		if err := s.startDaemon(name, args[len(names):]); err != nil {
			return err
		}
	}
	return nil
}

// programOf returns the program of a node. In tests with the race detector, only one node of a
// cluster runs the program with the detector, which is enough.
func (s script) programOf(node string) string {
	if race.Enabled && node != "node1" {
		return filepath.Join(s.plain, Program)
	}
	return Program
}

func (s script) startDaemon(node string, flags []string) error {
	if s.daemons[node] != nil {
		return fmt.Errorf("%s is already running", node)
	}
	cmd := exec.Command(s.programOf(node), append([]string{
		"daemon", "--config-dir", "conf", "--node", node, "--listen", s.Getenv("AT" + strings.TrimPrefix(node, "node")),
		"--interval", "1s", "--log-file", node + ".log",
	}, flags...)...)
	cmd.Dir = s.MkAbs(".")
	for _, name := range []string{"GORACE", "PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+s.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard // the daemon writes a log file
	if err := cmd.Start(); err != nil {
		return err
	}
	s.daemons[node] = cmd
	s.Defer(func() {
		if s.daemons[node] == cmd {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		log, _ := os.ReadFile(filepath.Join(cmd.Dir, node+".log"))
		s.Logf("[%s]\n%s", node, log[max(0, len(log)-4000):])
	})
	return nil
}

func halt(s script, args []string) error {
	for _, name := range args {
		s.Check(s.daemon(name).Process.Signal(os.Interrupt))
	}
	var err error
	for _, name := range args {
		if ended := s.waitDaemon(name); ended != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, ended))
		}
	}
	return err
}

func crash(s script, args []string) error {
	for _, name := range args {
		s.Check(s.daemon(name).Process.Kill())
	}
	for _, name := range args {
		if s.waitDaemon(name) == nil {
			return fmt.Errorf("%s exited before it was killed", name)
		}
	}
	return nil
}

func (s script) daemon(name string) *exec.Cmd {
	cmd := s.daemons[name]
	if cmd == nil {
		s.Fatalf("%s is not running", name)
	}
	return cmd
}

// waitDaemon waits for the end of a daemon.
func (s script) waitDaemon(name string) error {
	err := s.daemon(name).Wait()
	delete(s.daemons, name)
	return err
}
