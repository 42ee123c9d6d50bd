package main

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/hostile"
	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/internal/testx/script"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

var (
	hostileDirs  = flag.Int("hostile.dirs", 4, "number of generated hostile config directories that validate and a daemon load")
	hostileFirst = flag.Uint64("hostile.first", 0, "seed of the first of them")
	hostileSize  = flag.Int("hostile.size", 64<<10, "largest size in bytes of each of them")
	hostileWorst = flag.Bool("hostile.worst", false, "load the largest known directories, too")
)

// What loading a config directory may cost, whatever its files contain: a program and the child that
// evaluates its .cue files.
const (
	maxLoadMemory = 300 << 20
	maxLoadTime   = 30 * time.Second // of the processor
	maxRoundDelay = time.Second
)

// hostileConfigs returns the config directories to load.
func hostileConfigs(yield func(name string, c hostile.Config) bool) {
	if *hostileWorst {
		for _, c := range hostile.Worst() {
			if !yield(c.Kind, c) {
				return
			}
		}
	}
	valid := os.DirFS("../../examples")
	const memory = 989 // the child that evaluates its .cue files once had 285 MiB
	if c := hostile.NewConfig(memory, 1<<20, valid); !yield(fmt.Sprintf("seed %d (%s)", memory, c.Kind), c) {
		return
	}
	for seed := *hostileFirst; seed < *hostileFirst+uint64(*hostileDirs); seed++ {
		c := hostile.NewConfig(seed, *hostileSize, valid)
		if !yield(fmt.Sprintf("seed %d (%s)", seed, c.Kind), c) {
			return
		}
	}
}

func writeConfig(t *testing.T, dir string, files []configdir.File) {
	t.Helper()
	for _, f := range files {
		name := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Validation of a hostile directory ends with a result, within the limits of memory and processor
// time. "make hostile" runs many.
func TestValidateOfHostileDirectories(t *testing.T) {
	race.Skip(t)
	var largest, longest struct {
		name string
		memoryUse
		wall, cpu time.Duration
	}
	n := 0
	for name, c := range hostileConfigs {
		dir := filepath.Join(t.TempDir(), "conf")
		writeConfig(t, dir, c.Files)
		var out, errOut bytes.Buffer
		cmd := exec.Command(script.Program, "validate", dir)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		watched := watchMemory(cmd.Process.Pid)
		err := cmd.Wait()
		used := watched()
		wall, cpu := time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
		if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 || strings.Contains(errOut.String(), "panic") {
			t.Errorf("%s: %v: %.2000s", name, err, errOut.String())
		}
		if used.sum > maxLoadMemory || cpu > maxLoadTime {
			t.Errorf("%s: %v, %v of processor time, %v on the clock", name, used, cpu, wall)
		}
		if out.Len() > 4<<20 {
			t.Errorf("%s: the output has %d bytes", name, out.Len())
		}
		if used.sum > largest.sum {
			largest.name, largest.memoryUse, largest.wall, largest.cpu = name, used, wall, cpu
		}
		if cpu > longest.cpu {
			longest.name, longest.memoryUse, longest.wall, longest.cpu = name, used, wall, cpu
		}
		if cpu > 5*time.Second || used.sum > 150<<20 {
			t.Logf("%s: %v, %v of processor time, %v on the clock", name, used, cpu, wall)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		n++
	}
	t.Logf("%d directories; most memory: %s: %v, %v of processor time; longest: %s: %v, %v of processor time, %v on the clock",
		n, largest.name, largest.memoryUse, largest.cpu, longest.name, longest.memoryUse, longest.cpu, longest.wall)
}

// A daemon that finds one hostile directory after the other goes on with its rounds, keeps its
// images, applies what is valid beside the hostile files, and stays within the limit of memory. Only
// "make hostile" judges how late rounds are: it needs a quiet machine.
func TestDaemonWithHostileDirectories(t *testing.T) {
	race.Skip(t)
	ns := netns.New(t, fmt.Sprintf("bimhostile%d", os.Getpid())) // the files may name any node and source
	dir := t.TempDir()
	conf, image := filepath.Join(dir, "conf"), filepath.Join(dir, "images", "kept.raw")
	const interval = time.Second
	files.Put(t, strings.Repeat("image ", 1<<17), image)
	writeConfig(t, conf, []configdir.File{
		{Path: "kept.yaml", Data: fmt.Appendf(nil, "images: {kept: {uuid: \"00000001\", source: {download: {url: \"file://%s\"}}}}\nnodes: {keeper: {disks: {kept: {path: %s/disk}}}}\n", image, dir)},
	})
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(script.Program, "disk", "init", filepath.Join(dir, "disk")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := exec.LookPath(script.Program)
	if err != nil {
		t.Fatal(err)
	}
	line := append(ns.Exec(), program, "daemon", "--config-dir", conf, "--node", "keeper", "--listen", "127.0.0.1:8000", "--interval", interval.String(),
		"--allow-file-root", filepath.Join(dir, "images"), "--log-file", filepath.Join(dir, "log"))
	var errOut bytes.Buffer
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), <-ended); err != nil {
			t.Errorf("the daemon: %v: %.2000s", err, errOut.String())
		}
	}()
	d := &hostileDaemon{client: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = ns.Enter(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}}}, interval: interval}
	copied := filepath.Join(dir, "disk", "backing-images", "kept-00000001", "backing")
	d.until(t, "the image is ready", func() bool { return d.metric(t, "ready_copies") > 0 && fileExists(copied) })
	rounds := d.metric(t, "rounds_total")
	n, latest := 0, time.Duration(0)
	hostileDir := filepath.Join(conf, "hostile")
	for name, c := range hostileConfigs {
		d.late = 0
		busy, watched := watchMachine(), watchMemory(cmd.Process.Pid)
		writeConfig(t, filepath.Join(conf, "..hidden"), c.Files)
		if err := os.Rename(filepath.Join(conf, "..hidden"), hostileDir); err != nil {
			t.Fatal(err)
		}
		marker := fmt.Sprintf("marker%d", n)
		writeConfig(t, conf, []configdir.File{{Path: "marker.yaml", Data: fmt.Appendf(nil, "images: {%s: {source: {upload: {}}}}\n", marker)}})
		d.until(t, name+" is applied", func() bool { return d.declares(t, marker) || d.rejects(t) })
		applied := d.rounds
		d.until(t, "a round after "+name, func() bool { return d.metric(t, "rounds_total") > applied })
		d.get(t, "/v1/status")
		if !fileExists(copied) {
			t.Fatalf("%s: the image is gone", name)
		}
		noise := busy()
		if *hostileWorst && d.late > maxRoundDelay+noise {
			t.Errorf("%s: a round began %v late, on a machine that delays a computation by %v", name, d.late, noise)
		}
		latest = max(latest, d.late)
		used := watched()
		t.Logf("%s: a round began %v late; the machine delays a computation by %v; %v", name, d.late, noise, used)
		if used.own > maxLoadMemory || used.child > maxLoadMemory { // the child ends after seconds
			t.Errorf("%s: the daemon took %v", name, used)
		}
		if err := os.RemoveAll(hostileDir); err != nil {
			t.Fatal(err)
		}
		n++
	}
	d.until(t, "no error is left", func() bool { return d.metric(t, "config_valid") == 1 })
	t.Logf("%d directories: %v rounds, the latest one %v late", n, d.metric(t, "rounds_total")-rounds, latest)
}

// watchMachine measures how long the machine delays a short computation, until the returned function is
// called: what else the machine does makes rounds late, too.
func watchMachine() (stop func() time.Duration) {
	done, late := make(chan struct{}), make(chan time.Duration)
	go func() {
		block := make([]byte, 4<<20) // of some milliseconds
		least, most := time.Hour, time.Duration(0)
		for {
			began := time.Now()
			sha512.Sum512(block)
			least, most = min(least, time.Since(began)), max(most, time.Since(began))
			select {
			case <-time.After(200 * time.Millisecond):
			case <-done:
				late <- most - least
				return
			}
		}
	}()
	return func() time.Duration {
		close(done)
		return <-late
	}
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// hostileDaemon observes a daemon by its interface.
type hostileDaemon struct {
	client   *http.Client
	interval time.Duration
	last     float64       // begin of the last round
	rounds   float64       // number of rounds until then
	late     time.Duration // most that a round began after its interval
}

// get returns the body of a response, and nothing if there is none.
func (d *hostileDaemon) get(t *testing.T, path string) string {
	t.Helper()
	r, err := d.client.Get("http://127.0.0.1:8000" + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// metric returns a value of the metrics, and -1 if there is none. It notes late rounds. Of several
// rounds between two calls it knows the mean.
func (d *hostileDaemon) metric(t *testing.T, name string) float64 {
	t.Helper()
	all := d.get(t, "/metrics")
	began, rounds := metricIn(all, "last_round_timestamp_seconds"), metricIn(all, "rounds_total")
	if began > d.last && d.last > 0 {
		d.late = max(d.late, time.Duration((began-d.last)/max(1, rounds-d.rounds)*float64(time.Second))-d.interval)
	}
	if began > 0 {
		d.last, d.rounds = began, rounds
	}
	return metricIn(all, name)
}

func metricIn(all, name string) float64 {
	_, after, found := strings.Cut(all, "\nbacking_image_manager_"+name+" ")
	if !found {
		return -1
	}
	text, _, _ := strings.Cut(after, "\n")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return v
}

// declares reports whether the configuration in force declares an image.
func (d *hostileDaemon) declares(t *testing.T, image string) bool {
	t.Helper()
	d.metric(t, "rounds_total")
	return strings.Contains(d.get(t, "/v1/images/"+image+"/download"), image+"-") // with the uuid, which only a declaration gives
}

// rejects reports whether the configuration as a whole is over a limit, so that the last one stays in force.
func (d *hostileDaemon) rejects(t *testing.T) bool {
	t.Helper()
	return strings.Contains(d.get(t, "/v1/status"), "declare less in one directory: see the limits of the configuration in the operations guide")
}

// until waits until a condition is true. It asks once in an interval, because each response takes
// processor time from the rounds: with 12,000 images about half as much as a round.
func (d *hostileDaemon) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	end := time.Now().Add(5 * time.Minute)
	tick := time.NewTicker(d.interval)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 5 minutes", what)
		}
		<-tick.C
	}
}

// memoryUse is the most memory that a process, one of its children, and all together had, in bytes.
type memoryUse struct{ own, child, sum int64 }

func (m memoryUse) String() string {
	return fmt.Sprintf("%d MiB (child %d MiB, together %d MiB)", m.own>>20, m.child>>20, m.sum>>20)
}

// watchMemory measures a process from now on until the returned function is called.
func watchMemory(pid int) (stop func() memoryUse) {
	var most memoryUse
	// 5 resets the peak of the process (proc(5)).
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		panic(err)
	}
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			own, peak := resident(pid)
			sum := own
			for _, child := range children(pid) {
				now, childPeak := resident(child)
				sum += now
				most.child = max(most.child, childPeak)
			}
			most.own, most.sum = max(most.own, peak), max(most.sum, sum, peak)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() memoryUse {
		close(done)
		wait.Wait()
		return most
	}
}

// resident returns the memory that a process has, and the most that it had. A process that ended has
// none.
func resident(pid int) (now, peak int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		name, text, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = n << 10
		case "VmHWM":
			peak = n << 10
		}
	}
	return now, peak
}

// children returns the children of a process. A thread that ended has none.
func children(pid int) (all []int) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		panic(err) // the pattern is invalid
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, text := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(text); err == nil && !slices.Contains(all, child) {
				all = append(all, child)
			}
		}
	}
	return all
}
