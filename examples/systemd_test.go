package examples

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// unit is a unit file: the values of each key in their order. Each key is in one section.
type unit map[string][]string

func readUnit(t *testing.T, file string) unit {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	u := unit{}
	for line := range strings.Lines(strings.ReplaceAll(string(data), "\\\n", " ")) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u
}

func (u unit) last(key string) string {
	if len(u[key]) == 0 {
		return ""
	}
	return u[key][len(u[key])-1]
}

// TestSystemdKnowsTheUnit: with the program in a place where there is one.
func TestSystemdKnowsTheUnit(t *testing.T) {
	need.Programs(t, "systemd-analyze")
	for _, dropIn := range []string{"", "longhorn.conf"} {
		dir := t.TempDir()
		put := func(from, to string) {
			data, err := os.ReadFile(filepath.Join("systemd", from))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, to, from), strings.ReplaceAll(string(data), "/usr/local/bin/backing-image-manager", theImage(t).program))
		}
		put("backing-image-manager.service", "")
		if dropIn != "" {
			put(dropIn, "backing-image-manager.service.d")
		}
		if out := run(t, dir, "systemd-analyze", "verify", "--man=no", "./backing-image-manager.service"); strings.Contains(out, "backing-image") {
			t.Errorf("systemd says:\n%s", out)
		}
		out := run(t, dir, "systemd-analyze", "security", "--offline=yes", "--threshold=20", "./backing-image-manager.service")
		t.Log(out[strings.LastIndex(out, "Overall"):])
	}
}

func TestSystemd(t *testing.T) {
	for _, dropIn := range []string{"", "systemd/longhorn.conf"} {
		t.Run(filepath.Base(dropIn), func(t *testing.T) {
			u := readUnit(t, "systemd/backing-image-manager.service")
			config := configFiles(t, "kubernetes/base/config")
			if dropIn != "" {
				more := readUnit(t, dropIn)
				for key := range maps.Keys(more) {
					u[key] = append(u[key], more[key]...)
				}
				config = configFiles(t, "kubernetes/overlays/longhorn/config")
			}
			boot(t, u, config)
		})
	}
}

func boot(t *testing.T, u unit, config map[string]string) {
	f := newFleet(t, declared(t, config))
	crypto := f.memberCertificates(t)
	write(t, filepath.Join(crypto, "token"), "peer fedcba9876543210\nadmin 0123456789abcdef\n")
	user := map[string]int64{"backing-image-manager": 991, "root": 0}[u.last("User")]
	var disks []string
	var started []*container
	for _, n := range f.members {
		disk := f.newDisk(t, user, user)
		s := f.service(t, u, n, user, config, crypto)
		s.binds = append(s.binds, bind{from: disk, at: u.last("ReadWritePaths")})
		s.start(t)
		disks, started = append(disks, disk), append(started, s)
	}
	for _, n := range f.members {
		f.answers(t, n.Address+"/readyz", 200)
	}
	copies := 3
	if strings.Contains(config["images.yaml"], "minNumberOfCopies: 2") {
		copies = 2
	}
	f.ready(t, disks, copies, uint32(user))
	f.presents = []string{"--tls-ca", filepath.Join(crypto, "ca.crt"), "--token-file", filepath.Join(crypto, "token")}
	f.ask(t, f.members[0], "status")
	for _, s := range started {
		s.stop(t)
	}
}

var loaded = regexp.MustCompile(`^(\S+):/etc/backing-image-manager/(\S+)$`)

// service is what systemd starts, as far as the unit has a say in what it can see.
func (f *fleet) service(t *testing.T, u unit, n node, user int64, config map[string]string, crypto string) *container {
	t.Helper()
	stop, err := time.ParseDuration(u.last("TimeoutStopSec"))
	if err != nil {
		t.Fatal(err)
	}
	var most int64
	if _, err := fmt.Sscanf(u.last("MemoryMax"), "%dM", &most); err != nil {
		t.Fatal(err)
	}
	credentials, folder := t.TempDir(), "/run/credentials/backing-image-manager.service"
	for _, line := range u["LoadCredential"] {
		to := loaded.FindStringSubmatch(line)
		data, err := os.ReadFile(filepath.Join(crypto, to[2]))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(credentials, to[1]), string(data))
	}
	run(t, "", "chown", "-R", fmt.Sprint(user), credentials)
	run(t, "", "chmod", "-R", "u=rX,go=", credentials)
	declares := t.TempDir()
	for name, text := range config {
		write(t, filepath.Join(declares, name), text)
	}
	if err := os.Chmod(declares, 0o755); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.ReplaceAll(u.last("ExecStart"), "%d", folder))
	return &container{
		args: args, hostname: n.Name, network: f.nodes[n.Name], rootfs: f.rootfs(t), readOnly: u.last("ProtectSystem") == "strict",
		stayAsIs: u.last("NoNewPrivileges") == "yes", uid: user, gid: user, memory: most << 20, terminating: stop,
		binds: []bind{
			f.hosts(t), {from: f.program, at: args[0], options: []string{"ro"}},
			{from: declares, at: "/etc/backing-image-manager/config", options: []string{"ro"}}, {from: credentials, at: folder, options: []string{"ro"}},
		},
	}
}
