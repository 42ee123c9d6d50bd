package examples

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var packagesCheck = flag.Bool("packages.check", false, "build two clones of the commit, compare them, and install the packages in a clean Debian")

// Files and folders of the packages.
const (
	packageUnit  = "backing-image-manager.service"
	packageUser  = "backing-image-manager"
	packageDisk  = "/var/lib/backing-images"
	packageEtc   = "/etc/backing-image-manager"
	packageFlags = packageEtc + "/daemon.env"
	packageBase  = packageEtc + "/config/config.yaml"
	packageOwn   = packageEtc + "/config/images.yaml" // the quickstart
)

// format is a format of packages, with the command lines of its package manager.
type format struct {
	extension                 string
	install, upgrade, inspect []string // and the file
	remove, purge             []string
	kept                      string // what a removal adds to the name of an edited file
	fresh                     string // what an upgrade adds to the name of the new file beside an edited one
	starts                    bool   // an installation starts the service
	keeps                     bool   // a removal keeps the configuration, under its name
}

// The machines have no records of the packages that rpms depend on.
var formats = []format{
	{
		extension: ".deb", install: []string{"dpkg", "-i"}, upgrade: []string{"dpkg", "--force-confdef", "-i"}, inspect: []string{"dpkg", "-L", packageUser},
		remove: []string{"dpkg", "-r", packageUser}, purge: []string{"dpkg", "-P", packageUser}, fresh: ".dpkg-dist", starts: true, keeps: true,
	},
	{
		extension: ".rpm", install: []string{"rpm", "--force-debian", "--nodeps", "-i"}, upgrade: []string{"rpm", "--force-debian", "--nodeps", "--replacepkgs", "-U"},
		inspect: []string{"rpm", "-ql", packageUser}, remove: []string{"rpm", "--force-debian", "-e", packageUser}, kept: ".rpmsave", fresh: ".rpmnew",
	},
}

// TestPackages installs, uses, upgrades, removes and purges the packages on a machine that systemd has booted from
// an overlay of this one.
func TestPackages(t *testing.T) {
	need.Containers(t)
	need.Programs(t, "nfpm", "rpm", "systemd-analyze", "mount", "unshare", "setpriv")
	dist := t.TempDir()
	buildPackages(t, "..", dist)
	livePackages(t, dist, "")
}

// TestDist is "make dist-check".
func TestDist(t *testing.T) {
	if !*packagesCheck {
		t.Skip("takes many minutes and needs a mirror of Debian: run make dist-check")
	}
	need.Root(t, "boot a machine")
	for _, program := range []string{"lintian", "mmdebstrap", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: apt-get install --no-install-recommends %s", err, program)
		}
	}
	dir := t.TempDir()
	first, second := filepath.Join(dir, "one"), filepath.Join(dir, "another/folder")
	run(t, "", "git", "clone", "--quiet", "..", first)
	run(t, "", "sh", "-c", `umask 077; git clone --quiet .. "$1"; touch -d 2001-01-01 "$1/Makefile"`, "sh", second)
	run(t, first, "make", "dist")
	run(t, second, "env", "GOCACHE="+t.TempDir(), "TZ=Pacific/Auckland", "LANG=C.UTF-8", "sh", "-c", "umask 077; make dist") // compiles all again
	wantSameFiles(t, filepath.Join(first, "dist"), filepath.Join(second, "dist"))
	for _, arch := range []string{"amd64", "arm64"} {
		debs, err := filepath.Glob(filepath.Join(first, "dist/*_"+arch+".deb"))
		if err != nil || len(debs) != 1 {
			t.Fatalf("packages %q, error %v", debs, err)
		}
		t.Log(run(t, "", "lintian", "--allow-root", "--fail-on", "error", debs[0]))
	}
	chroot := filepath.Join(dir, "debian.tar")
	run(t, "", "mmdebstrap", "--variant=minbase", "--include=systemd,rpm,ca-certificates", "bookworm", chroot)
	livePackages(t, filepath.Join(first, "dist"), chroot)
}

// wantSameFiles compares two outputs of "make dist", and with their checksums.
func wantSameFiles(t *testing.T, first, second string) {
	t.Helper()
	names := map[string]int{}
	for _, dir := range []string{first, second} {
		run(t, dir, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			names[entry.Name()]++
		}
	}
	const files = 2*4 + 1 // an archive, a bill of materials, a deb and a rpm for each architecture; SHA256SUMS
	if len(names) != files {
		t.Errorf("make dist writes %v", names)
	}
	for name := range names {
		a, err := os.ReadFile(filepath.Join(first, name))
		b, err2 := os.ReadFile(filepath.Join(second, name))
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs (errors %v, %v)", name, err, err2)
		}
		t.Logf("%x  %s", sha256.Sum256(a), name)
	}
}

// livePackages runs the life of each format with the files of a tar archive, or with those of this machine.
func livePackages(t *testing.T, dist, chroot string) {
	t.Helper()
	next := nextPackages(t, dist)
	for _, f := range formats {
		t.Run(f.extension, func(t *testing.T) {
			net := newFleet(t, []node{{Name: "packaged", Address: "http://192.0.2.11:8000"}})
			m := bootMachine(t, net, chroot)
			m.put(t, onePackage(t, dist, f), "/root/this"+f.extension)
			m.put(t, onePackage(t, next, f), "/root/next"+f.extension)
			f.live(t, m, net)
		})
	}
}

// buildPackages builds the commit of a checkout for this processor, as "make dist" does, without the bill of materials.
func buildPackages(t *testing.T, checkout, dist string) {
	t.Helper()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil || !bytes.Contains(makefile, []byte("\nNFPM := "+need.NFPM+"\n")) {
		t.Fatalf("the Makefile does not use %s (error %v)", need.NFPM, err)
	}
	run(t, checkout, "env", "NFPM="+need.NFPM, "CYCLONEDX=", "internal/packages/build", dist, runtime.GOARCH)
	run(t, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
}

// onePackage returns the package for this processor.
func onePackage(t *testing.T, dist string, f format) string {
	t.Helper()
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	files, err := filepath.Glob(filepath.Join(dist, "*"+f.extension))
	files = slices.DeleteFunc(files, func(file string) bool {
		return !strings.HasSuffix(file, runtime.GOARCH+".deb") && !strings.HasSuffix(file, arch+".rpm")
	})
	if err != nil || len(files) != 1 {
		t.Fatalf("packages %q in %s, error %v", files, dist, err)
	}
	return files[0]
}

// nextPackages makes packages of a later version, with another file of flags, from the archive of the first one.
func nextPackages(t *testing.T, dist string) (next string) {
	t.Helper()
	next, work := t.TempDir(), t.TempDir()
	archives, err := filepath.Glob(filepath.Join(dist, "*_linux_"+runtime.GOARCH+".tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %q in %s, error %v", archives, dist, err)
	}
	stage := filepath.Join(work, strings.TrimSuffix(filepath.Base(archives[0]), ".tar.gz"))
	run(t, work, "tar", "-xf", archives[0])
	for _, name := range []string{"licenses.gz", "changelog.gz", "changelog.Debian.gz"} {
		write(t, filepath.Join(stage, name), "")
	}
	for _, dir := range []string{"internal/packages", "examples/systemd", "examples/quickstart"} {
		if err := os.CopyFS(filepath.Join(work, dir), os.DirFS(filepath.Join("..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(string) string{
		"daemon.env": func(text string) string { return "# new in the next version\n" + text },
		"nfpm.yaml":  func(text string) string { return text + "  compression: gzip:1\ndeb:\n  compression: none\n" }, // faster
	} {
		file := filepath.Join(work, "internal/packages", name)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, change(string(data)))
	}
	for _, f := range formats {
		cmd := need.Go(t.Context(), "run", need.NFPM, "package", "--config", "internal/packages/nfpm.yaml", "--packager", f.extension[1:], "--target", next+"/")
		cmd.Dir = work
		cmd.Env = append(cmd.Environ(), "STAGE="+stage, "VERSION=999", "ARCH="+runtime.GOARCH, "SOURCE_DATE_EPOCH=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return next
}

// live is the life of a package on a machine.
func (f format) live(t *testing.T, m *machine, net *fleet) {
	before := m.names(t)
	installed := f.installFirst(t, m)
	m.run(t, f.remove...)
	f.wantRemoved(t, m, installed)
	f.erase(t, m)
	after := m.names(t)
	left := slices.DeleteFunc(after, func(name string) bool { _, found := slices.BinarySearch(before, name); return found })
	if len(left) > 0 {
		t.Errorf("the removal leaves %q", left)
	}

	f.installFirst(t, m)
	m.quickstart(t)
	m.run(t, "chmod", "0711", packageDisk) // who may read it is the operator's choice
	copies := m.disk(t)
	want := fmt.Sprintf("(?m)^%x  (./backing-images/debian-12-[0-9a-f]{8}/backing)$", sha256.Sum256(net.content))
	if found := regexp.MustCompile(want).FindString(strings.Join(copies, "")); found == "" {
		t.Fatalf("the disk has %q; want %s", copies, want)
	}
	m.edit(t, packageFlags, "# flags\n")
	m.edit(t, packageBase, "# base\n")

	pid := m.run(t, "systemctl", "show", "-P", "MainPID", packageUnit)
	m.run(t, append(slices.Clone(f.upgrade), "/root/next"+f.extension)...)
	m.wantActive(t, "debian-12")
	if now := m.run(t, "systemctl", "show", "-P", "MainPID", packageUnit); now == pid {
		t.Errorf("the upgrade did not restart the daemon")
	}
	m.wantText(t, packageFlags+f.fresh, "new in the next version")
	m.wantText(t, packageFlags, "# flags\n")
	m.wantText(t, packageBase, "# base\n")

	m.run(t, "systemctl", "disable", packageUnit)
	m.run(t, append(slices.Clone(f.upgrade), "/root/next"+f.extension)...)
	if out := m.output("systemctl", "is-enabled", packageUnit); out != "disabled\n" {
		t.Errorf("an upgrade changes a service that is disabled to %q", out)
	}
	m.run(t, "systemctl", "enable", packageUnit)
	m.wantActive(t, "debian-12")

	m.run(t, f.remove...)
	f.wantRemoved(t, m, installed)
	m.wantDisk(t, copies)
	m.wantText(t, packageFlags+f.kept, "# flags\n")
	m.wantText(t, packageBase+f.kept, "# base\n")
	m.wantText(t, packageOwn, "debian-12")
	f.erase(t, m)
	m.wantDisk(t, copies)
	m.wantText(t, packageOwn, "debian-12")

	// A new installation that finds a disk and no declaration deletes nothing.
	m.run(t, "rm", packageOwn)
	f.installFirst(t, m)
	m.wantDisk(t, copies)
	m.run(t, f.remove...)
	f.erase(t, m)
	m.wantDisk(t, copies)
	if n := net.upstream.images.Load(); n != 1 {
		t.Errorf("the image was requested %d times", n)
	}
}

// erase purges the package if the format can, and otherwise removes what a removal has kept of edited files.
func (f format) erase(t *testing.T, m *machine) {
	t.Helper()
	if f.purge != nil {
		m.run(t, f.purge...)
		return
	}
	m.run(t, "rm", "-f", packageFlags+f.kept, packageBase+f.kept, packageFlags+f.fresh)
}

// installFirst installs the package and checks that the service only observes. It returns the installed files.
func (f format) installFirst(t *testing.T, m *machine) (installed []string) {
	t.Helper()
	m.run(t, append(slices.Clone(f.install), "/root/this"+f.extension)...)
	for _, file := range strings.Fields(m.run(t, f.inspect...)) {
		if info, err := os.Lstat(m.path(file)); err != nil {
			t.Error(err)
		} else if !info.IsDir() {
			installed = append(installed, file)
		}
	}
	if len(installed) < 30 {
		t.Fatalf("installed %q", installed)
	}
	if out := m.output("systemd-analyze", "verify", "--man=no", packageUnit); strings.Contains(out, "backing-image") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	m.run(t, "bash", "-n", "/usr/share/bash-completion/completions/backing-image-manager")
	if !f.starts {
		m.run(t, "systemctl", "enable", "--now", packageUnit)
	}
	m.wantActive(t)
	m.until(t, "observe only", "backing-image-manager", "status")
	return installed
}

// wantRemoved checks that nothing is left but configuration.
func (f format) wantRemoved(t *testing.T, m *machine, installed []string) {
	t.Helper()
	if out := m.output("sh", "-c", "cat /proc/[0-9]*/comm"); !strings.HasPrefix(out, "systemd\n") || strings.Contains(out, "backing-image") {
		t.Errorf("the processes are %s", out)
	}
	for _, file := range installed {
		_, err := os.Lstat(m.path(file))
		if configuration := strings.HasPrefix(file, packageEtc+"/"); (err == nil) != (configuration && f.keeps) {
			t.Errorf("after the removal, %s: %v", file, err)
		}
	}
}

// machine is Debian in namespaces of its own, which systemd has booted.
type machine struct{ pid int }

// bootScript makes the root file system $1, and executes systemd. Without a folder, the root is that of this machine, under
// an overlay in memory. The machine sees the kernel of this one, and may not change its settings, clock or modules.
const bootScript = `
mount --make-rprivate /
root=$2
mount -t tmpfs tmpfs "$root"
if [ -n "$1" ]; then
	mount --bind "$1" "$root"
else
	mkdir "$root/upper" "$root/work" "$root/root"
	mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
	root=$root/root
fi
mount -t proc proc "$root/proc"
mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
	touch "$root/dev/$device"
	mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts" "$root/run/old"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
cd "$root"
pivot_root . run/old
exec env -i container=test PATH=/usr/sbin:/usr/bin setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-sys_boot,-mknod \
	sh -c 'umount -l /run/old; exec /lib/systemd/systemd --show-status=no --unit=basic.target'
`

// bootMachine boots a machine in the network of the first node. It runs until the test ends.
func bootMachine(t *testing.T, net *fleet, chroot string) *machine {
	t.Helper()
	root, mount := "", t.TempDir()
	if chroot != "" {
		root = t.TempDir()
		run(t, root, "tar", "--exclude=./dev/*", "-xf", chroot)
	}
	line := append(net.networks[net.nodes[0].Name].Exec(), "unshare", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child",
		"sh", "-euc", bootScript, "sh", root, mount)
	cmd := exec.Command(line[0], line[1:]...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &machine{}
	t.Cleanup(func() {
		if t.Failed() && m.pid != 0 {
			t.Logf("journal:\n%s", m.output("journalctl", "--no-pager", "-u", packageUnit))
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // unshare was killed, and has killed systemd
		if t.Failed() {
			t.Logf("output of the boot:\n%s", &output)
		}
	})
	poll(t, "systemd", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if m.pid == 0 {
			_, _ = fmt.Sscan(string(children), &m.pid) // no child yet
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid)) // before it is systemd, it is on this machine
		return err == nil && string(name) == "systemd\n" && m.output("systemctl", "is-active", "basic.target") == "active\n"
	})
	write(t, m.path("/etc/hosts"), "127.0.0.1 localhost\n"+upstreamAddress+" "+upstreamHost+"\n")
	write(t, m.path("/etc/ssl/certs/ca-certificates.crt"), string(net.upstream.ca))
	// In many container images of Debian, dpkg installs no documents, and starts no service. An index of all manuals of this
	// machine would take long.
	m.run(t, "sh", "-c", "rm -f /etc/dpkg/dpkg.cfg.d/* /usr/sbin/policy-rc.d /var/lib/man-db/auto-update")
	return m
}

// path returns the path of a file of the machine on this one.
func (m *machine) path(file string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.pid), file)
}

func (m *machine) put(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, m.path(to), string(data))
}

// line returns the command line that runs a command line as root of the machine.
func (m *machine) line(args []string) []string {
	return append([]string{
		"nsenter", "--target", fmt.Sprint(m.pid), "--all", "--root", "--wd",
		"env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}, args...)
}

func (m *machine) run(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "", m.line(args)...)
}

// output returns the output and the messages of a command that may fail.
func (m *machine) output(args ...string) string {
	line := m.line(args)
	out, _ := exec.Command(line[0], line[1:]...).CombinedOutput() // the caller checks the output
	return string(out)
}

// names returns the names of all files that are no records of package managers, and of all folders of the program.
// rpm leaves folders that were missing, and that a package does not own.
func (m *machine) names(t *testing.T) []string {
	t.Helper()
	out := m.run(t, "find", "/etc", "/usr", "/var/lib", "-xdev", "-path", "/var/lib/dpkg", "-prune", "-o", "-path", "/var/lib/rpm", "-prune", "-o",
		"(", "!", "-type", "d", "-o", "-name", "*backing-image*", ")", "-print")
	return slices.Sorted(strings.Lines(out))
}

var packagesBlock = regexp.MustCompile("(?ms)^### Packages\n.*?^```sh\n(.*?)^```")

// quickstart runs the commands of the operator's guide, without that which installs the package. The image is
// ready within the time that they state.
func (m *machine) quickstart(t *testing.T) {
	t.Helper()
	guide, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(packagesBlock.FindSubmatch(guide)[1])))
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "sudo apt install ") || !strings.Contains(lines[len(lines)-1], " wait --for ready debian-12 --timeout 1m") {
		t.Fatalf("the guide has the commands %q", lines)
	}
	for _, line := range lines[1:] {
		m.run(t, "sh", "-euc", strings.TrimPrefix(line, "sudo "))
	}
}

// disk returns a line for each file of the disk, and another one with its digest, if the daemon does not write it at
// each start.
func (m *machine) disk(t *testing.T) []string {
	t.Helper()
	const list = `cd "$1"; find . -printf "%p %u %m\n"; find . -type f ! -name "*.record" -exec sha256sum {} +`
	return slices.Sorted(strings.Lines(m.run(t, "sh", "-euc", list, "sh", packageDisk)))
}

func (m *machine) wantDisk(t *testing.T, want []string) {
	t.Helper()
	if got := m.disk(t); !slices.Equal(got, want) {
		t.Errorf("the disk has %q; want %q", got, want)
	}
}

// wantActive checks the service, and that the images are ready.
func (m *machine) wantActive(t *testing.T, images ...string) {
	t.Helper()
	if out := m.output("systemctl", "is-enabled", packageUnit) + m.output("systemctl", "is-active", packageUnit); out != "enabled\nactive\n" {
		t.Fatalf("the service is %q\n%s", out, m.output("journalctl", "--no-pager", "-u", packageUnit))
	}
	pid := strings.TrimSpace(m.run(t, "systemctl", "show", "-P", "MainPID", packageUnit))
	if user := m.run(t, "stat", "-c", "%U", "/proc/"+pid); user != packageUser+"\n" {
		t.Errorf("the user of the daemon is %q", user)
	}
	for _, image := range images {
		m.until(t, "", "backing-image-manager", "wait", "--for", "ready", image, "--timeout", timeout.String())
	}
}

// until runs a command until it succeeds and prints the text.
func (m *machine) until(t *testing.T, text string, args ...string) {
	t.Helper()
	line := m.line(args)
	poll(t, fmt.Sprintf("%q to print %q", args, text), func() bool {
		out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
		return err == nil && strings.Contains(string(out), text)
	})
}

// edit appends text to a file.
func (m *machine) edit(t *testing.T, file, text string) {
	t.Helper()
	data, err := os.ReadFile(m.path(file))
	if err != nil {
		t.Fatal(err)
	}
	write(t, m.path(file), string(data)+text)
}

func (m *machine) wantText(t *testing.T, file, text string) {
	t.Helper()
	if data, err := os.ReadFile(m.path(file)); err != nil || !strings.Contains(string(data), text) {
		t.Errorf("%s: no text %q in %q (error %v)", file, text, data, err)
	}
}

// poll waits until done.
func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(timeout); !done(); {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited for %s", what)
		}
	}
}
