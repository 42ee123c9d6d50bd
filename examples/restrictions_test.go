package examples

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/container"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// families are the address families of socket, by their names in a unit.
var families = map[string]uint64{"AF_UNIX": syscall.AF_UNIX, "AF_INET": syscall.AF_INET, "AF_INET6": syscall.AF_INET6, "AF_NETLINK": syscall.AF_NETLINK}

const lastFamily = 45 // AF_MCTP

// namespaceFlags are the flags of clone that make namespaces.
const namespaceFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET

const suidBits = syscall.S_ISUID | syscall.S_ISGID

// restrictions are the options of a unit that take something away from the process, with how a container does the same. An
// option that is not in the list fails the test.
var restrictions = map[string]func(t *testing.T, u unit, c *container.Container){
	"NoNewPrivileges": func(_ *testing.T, u unit, c *container.Container) {
		c.NoNewPrivileges = u.last("NoNewPrivileges") == "yes"
	},
	"PrivateUsers": func(_ *testing.T, u unit, c *container.Container) { c.UserNamespace = u.last("PrivateUsers") == "yes" },
	"ProtectProc": func(_ *testing.T, u unit, c *container.Container) {
		c.Proc = append(c.Proc, "hidepid="+u.last("ProtectProc"))
	},
	"ProcSubset": func(_ *testing.T, u unit, c *container.Container) {
		c.Proc = append(c.Proc, "subset="+u.last("ProcSubset"))
	},
	"ProtectSystem":    func(_ *testing.T, u unit, c *container.Container) { c.ReadOnly = u.last("ProtectSystem") == "strict" },
	"SystemCallFilter": func(t *testing.T, u unit, c *container.Container) { c.Seccomp = u.seccomp(t) },
	"UMask": func(t *testing.T, u unit, c *container.Container) {
		mask, err := strconv.ParseUint(u.last("UMask"), 8, 32)
		if err != nil {
			t.Fatal(err)
		}
		c.Umask = uint32(mask)
	},
	"MemoryMax": func(t *testing.T, u unit, c *container.Container) {
		if _, err := fmt.Sscanf(u.last("MemoryMax"), "%dM", &c.Memory); err != nil {
			t.Fatal(err)
		}
		c.Memory <<= 20
	},
	// Every container is like this: it has no capabilities, no home folders, no devices and no /sys, an empty /tmp, and a /proc/sys that is
	// read-only.
	"CapabilityBoundingSet": hasValue("CapabilityBoundingSet", ""), "ProtectHome": hasValue("ProtectHome", "yes"),
	"PrivateDevices": hasValue("PrivateDevices", "yes"), "PrivateTmp": hasValue("PrivateTmp", "yes"),
	"ProtectKernelTunables": hasValue("ProtectKernelTunables", "yes"), "ProtectControlGroups": hasValue("ProtectControlGroups", "yes"),
	// seccomp has these.
	"RestrictAddressFamilies": nothing, "RestrictNamespaces": nothing, "RestrictRealtime": nothing, "RestrictSUIDSGID": nothing,
	"MemoryDenyWriteExecute": nothing, "LockPersonality": nothing, "SystemCallArchitectures": nothing, "SystemCallErrorNumber": nothing,
	"ProtectKernelModules": nothing, "ProtectKernelLogs": nothing, "ProtectClock": nothing, "ProtectHostname": nothing,
}

func nothing(*testing.T, unit, *container.Container) {}

// hasValue checks that an option has the only value that a container can have.
func hasValue(key, value string) func(*testing.T, unit, *container.Container) {
	return func(t *testing.T, u unit, _ *container.Container) {
		if u.last(key) != value {
			t.Errorf("%s=%s: the test knows only %q", key, u.last(key), value)
		}
	}
}

var restriction = regexp.MustCompile(`^(Restrict|Protect|Private|SystemCall|Memory|Lock|Capability|NoNew|Proc|UMask|Inaccessible|NoExec|Device|Keyring|IPAddress|Socket|TemporaryFileSystem|Limit)`)

// restrict gives the container the restrictions of the unit.
func (u unit) restrict(t *testing.T, c *container.Container) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(u)) {
		if apply := restrictions[key]; apply != nil {
			apply(t, u, c)
		} else if restriction.MatchString(key) {
			t.Errorf("the test does not know %s=%s", key, u.last(key))
		}
	}
}

// systemCalls returns the system calls of a group of systemd and of the groups in it, or the one with the name.
func systemCalls(t *testing.T, name string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	out, err := exec.Command("systemd-analyze", "syscall-filter", "--no-pager", name).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, word := range strings.Split(string(out), "\n")[1:] {
		if word = strings.TrimSpace(word); word != "" && !strings.HasPrefix(word, "#") {
			calls = append(calls, systemCalls(t, word)...)
		}
	}
	return calls
}

// seccomp returns the filter that systemd makes of the unit.
func (u unit) seccomp(t *testing.T) *container.Seccomp {
	t.Helper()
	if u.last("SystemCallErrorNumber") != "EPERM" || u.last("SystemCallArchitectures") != "native" {
		t.Fatal("the test knows only SystemCallErrorNumber=EPERM and SystemCallArchitectures=native")
	}
	allowed := map[string]bool{}
	for _, line := range u["SystemCallFilter"] {
		names, denied := strings.CutPrefix(line, "~")
		for _, name := range strings.Fields(names) {
			for _, call := range systemCalls(t, name) {
				allowed[call] = !denied
			}
		}
	}
	for key, group := range map[string]string{"ProtectKernelModules": "@module", "ProtectClock": "@clock", "ProtectKernelLogs": "syslog", "ProtectHostname": "sethostname"} {
		if u.last(key) == "yes" {
			for _, call := range systemCalls(t, group) {
				allowed[call] = false
			}
		}
	}
	s := &container.Seccomp{DefaultAction: "SCMP_ACT_ERRNO", DefaultErrnoRet: uint(syscall.EPERM)}
	// only lets the call pass with some values of the bits of an argument. The error of other calls is EPERM.
	only := func(call string, index uint, mask uint64, values ...uint64) {
		if !allowed[call] {
			return
		}
		delete(allowed, call)
		for _, v := range values {
			s.Syscalls = append(s.Syscalls, container.Syscalls{Names: []string{call}, Action: "SCMP_ACT_ALLOW",
				Args: []container.Arg{{Index: index, Value: mask, ValueTwo: v, Op: "SCMP_CMP_MASKED_EQ"}}})
		}
	}
	fails := func(call string, errno syscall.Errno, args ...container.Arg) {
		n := uint(errno)
		s.Syscalls = append(s.Syscalls, container.Syscalls{Names: []string{call}, Action: "SCMP_ACT_ERRNO", ErrnoRet: &n, Args: args})
	}
	const all = 1<<64 - 1
	if list := strings.Fields(u.last("RestrictAddressFamilies")); len(list) > 0 {
		var may []uint64
		for _, name := range list {
			if families[name] == 0 {
				t.Errorf("the test does not know %s", name)
			}
			may = append(may, families[name])
		}
		only("socket", 0, all, may...)
		for family := range uint64(lastFamily + 1) {
			if !slices.Contains(may, family) {
				fails("socket", syscall.EAFNOSUPPORT, container.Arg{Value: family, Op: "SCMP_CMP_EQ"})
			}
		}
	}
	if u.last("MemoryDenyWriteExecute") == "yes" {
		only("mmap", 2, syscall.PROT_WRITE|syscall.PROT_EXEC, 0, syscall.PROT_WRITE, syscall.PROT_EXEC)
		only("mprotect", 2, syscall.PROT_EXEC, 0)
		only("pkey_mprotect", 2, syscall.PROT_EXEC, 0)
	}
	if u.last("RestrictNamespaces") == "yes" {
		delete(allowed, "setns")
		only("unshare", 0, namespaceFlags, 0)
		only("clone", 0, namespaceFlags, 0)
		delete(allowed, "clone3")
		fails("clone3", syscall.ENOSYS)
	}
	if u.last("RestrictRealtime") == "yes" {
		only("sched_setscheduler", 1, all, 0, 3, 5) // SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
	}
	if u.last("RestrictSUIDSGID") == "yes" {
		for call, index := range map[string]uint{"chmod": 1, "fchmod": 1, "fchmodat": 2, "mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2, "creat": 1} {
			only(call, index, suidBits, 0)
		}
	}
	if u.last("LockPersonality") == "yes" {
		only("personality", 0, all, 0, 0xffffffff)
	}
	maps.DeleteFunc(allowed, func(_ string, may bool) bool { return !may })
	s.Syscalls = append(s.Syscalls, container.Syscalls{Names: slices.Sorted(maps.Keys(allowed)), Action: "SCMP_ACT_ALLOW"})
	return s
}

// runtimeDefault returns a filter that denies at least what the profile RuntimeDefault of container runtimes denies to a
// process without capabilities: the filter of the unit, without the calls of it that the profile denies.
func runtimeDefault(t *testing.T) *container.Seccomp {
	t.Helper()
	need.Programs(t, "systemd-analyze")
	s := readUnit(t, "systemd/backing-image-manager.service").seccomp(t)
	denied := regexp.MustCompile(`^(add_key|keyctl|request_key|io_uring_.*|userfaultfd|kcmp|[sg]et_mempolicy|mbind|move_pages|process_.*|pidfd_getfd|ptrace|remap_file_pages)$`)
	for i, calls := range s.Syscalls {
		s.Syscalls[i].Names = slices.DeleteFunc(calls.Names, denied.MatchString)
	}
	return s
}

// TestSystemdRestrictions creates images from local sources, with child processes, under the restrictions of the unit. Among
// them is that a process may not list the addresses of the machine: an image from one of them is refused all the same.
func TestSystemdRestrictions(t *testing.T) {
	need.Programs(t, "cryptsetup", "systemd-analyze")
	f := newFleet(t, []node{{Name: "edge-1", Address: "http://192.0.2.11:8000"}})
	u := readUnit(t, "systemd/backing-image-manager.service")
	const user = 991
	disk := f.newDisk(t, user, user)
	backups := filepath.Join(t.TempDir(), "backups")
	run(t, "", "install", "-d", "-o", fmt.Sprint(user), backups)
	files := t.TempDir()
	run(t, "", "cp", "../disk/testdata/good/v3.qcow2.gz", files)
	write(t, filepath.Join(files, "lab.raw"), strings.Repeat("lab\n", 1<<18))
	write(t, filepath.Join(files, "vault", "CRYPTO_KEY_VALUE"), "0123456789")
	write(t, filepath.Join(files, "vault", "CRYPTO_PBKDF"), "pbkdf2")
	write(t, filepath.Join(files, "vault", "CRYPTO_PBKDF_FORCE_ITERATIONS"), "1000")
	run(t, "", "chmod", "-R", "a+rX", files)
	reconcile := func(u unit, config string) (output string, code int) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "images.cue"), config)
		run(t, "", "chmod", "a+rx", dir)
		root := f.rootFS(t)
		for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
			if err := os.Symlink(filepath.Join("usr", name), filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		c := &container.Container{
			Args:     []string{"/backing-image-manager", "reconcile", "--config-dir", "/config", "--disk", "/disk", "--secrets-dir", "/files"},
			Hostname: "edge-1", Network: f.networks["edge-1"], RootFS: root, UID: user, GID: user, StopTimeout: timeout,
			Mounts: []container.Mount{{Source: "/usr", Target: "/usr", Options: []string{"ro"}}, {Source: dir, Target: "/config", Options: []string{"ro"}},
				{Source: files, Target: "/files", Options: []string{"ro"}}, {Source: disk, Target: "/disk"}, {Source: backups, Target: "/backups"}},
		}
		u.restrict(t, c)
		c.Start(t)
		return c.Wait(t)
	}

	output, code := reconcile(u, `images: {
	packed: {source: download: url: "file:///files/v3.qcow2.gz", backup: target: "/backups"}
	lab: source: exportFromVolume: {path: "/files/lab.raw", exportType: "qcow2"}
	copied: source: clone: backingImage: "packed"
	locked: source: clone: {backingImage: "packed", encryption: "encrypt", secret: "vault"}
	opened: source: clone: {backingImage: "locked", encryption: "decrypt", secret: "vault"}
}
`)
	if code != 0 {
		t.Errorf("reconcile exits with %d:\n%s", code, output)
	}
	const own = `images: own: source: download: url: "http://192.0.2.11:8000/own.raw"`
	unlisted := maps.Clone(u)
	unlisted["RestrictAddressFamilies"] = []string{"AF_INET AF_INET6 AF_UNIX"}
	for why, u := range map[string]unit{"is an address of this machine:": u, "is an address that this machine can bind": unlisted} {
		if output, code := reconcile(u, own); code != 1 || !strings.Contains(output, "host 192.0.2.11 "+why) {
			t.Errorf("reconcile exits with %d, without %q:\n%s", code, why, output)
		}
	}
}
