package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// node is a machine of the cluster: its network, its disks, its config directory and its daemon.
type node struct {
	index   int
	name    string
	dir     string
	network netns.Namespace
	disks   []*disk
	config  *configDir
	binary  string

	daemon  *daemon   // nil while none runs
	resumed time.Time // start of the daemon, or the end of its last pause
	paused  bool

	applied *config // the last valid content of the config directory
	damaged bool    // the config directory is broken or empty
}

// daemon is a process.
type daemon struct {
	cmd   *exec.Cmd
	asked bool          // the suite ended it
	done  chan struct{} // closed when it has exited
	err   error         // of Wait; valid after done
}

const port = "8000"

func (n *node) url() string { return "https://" + nodeAddress(n.index) + ":" + port }

func (n *node) log() string { return filepath.Join(n.dir, "log") }

// start starts the daemon.
func (n *node) start() error {
	log, err := os.OpenFile(n.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	tls := filepath.Join(n.dir, "tls")
	d := &daemon{done: make(chan struct{}), cmd: exec.Command(n.binary, "daemon",
		"--config-dir", n.config.path, "--node", n.name, "--listen", nodeAddress(n.index)+":"+port, "--interval", "1s", "--log-format", "json",
		"--tls-cert", filepath.Join(tls, "tls.crt"), "--tls-key", filepath.Join(tls, "tls.key"), "--tls-ca", filepath.Join(tls, "ca.crt"))}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=0")
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if the test is killed
	if err := start(n.network, d.cmd); err != nil {
		return err
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	n.daemon, n.resumed, n.paused = d, time.Now(), false
	return nil
}

// running reports whether the daemon runs and is not paused.
func (n *node) running() bool { return n.daemon != nil && !n.paused && !n.daemon.exited() }

// upFor returns for how long the daemon has run without a pause.
func (n *node) upFor() time.Duration {
	if !n.running() {
		return 0
	}
	return time.Since(n.resumed)
}

func (d *daemon) exited() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// kill ends the daemon with SIGKILL.
func (n *node) kill() error {
	n.daemon.asked = true
	err := n.daemon.cmd.Process.Kill()
	<-n.daemon.done
	n.daemon = nil
	return err
}

// haltTime is how long a daemon may take to exit.
const haltTime = 30 * time.Second

// halt ends the daemon with SIGINT, and returns an error unless it exits with 0.
func (n *node) halt() error {
	d := n.daemon
	d.asked = true
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-d.done:
	case <-time.After(haltTime):
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // the goroutines are in the log then
		<-d.done
		n.daemon = nil
		return fmt.Errorf("%s did not exit within %v after SIGINT", n.name, haltTime)
	}
	n.daemon = nil
	if d.err != nil {
		return fmt.Errorf("%s did not exit with 0 after SIGINT: %w", n.name, d.err)
	}
	return nil
}

func (n *node) pause() error {
	n.paused = true
	return n.daemon.cmd.Process.Signal(syscall.SIGSTOP)
}

func (n *node) resume() error {
	n.paused, n.resumed = false, time.Now()
	if n.daemon == nil {
		return nil
	}
	return n.daemon.cmd.Process.Signal(syscall.SIGCONT)
}

// runCommand runs a command of the program and returns its output.
func runCommand(timeout time.Duration, line ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// runIn is runCommand in a namespace.
func runIn(ctx context.Context, n netns.Namespace, line ...string) (string, error) {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := start(n, cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), nil
}

// tail returns the end of a log.
func tail(file string) string {
	b, _ := os.ReadFile(file) // "" without a log
	return string(b[max(0, len(b)-2000):])
}
