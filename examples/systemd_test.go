package examples

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/container"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// unit has the values of each key of a unit file, in their order. No key is in two sections.
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

// TestSystemdAcceptsTheUnit lets systemd verify the unit, with the path of the built program in
// it.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	need.Programs(t, "systemd-analyze")
	for _, dropIns := range [][]string{nil, {"certificates.conf"}, {"certificates.conf", "longhorn.conf"}} {
		dir := t.TempDir()
		put := func(from, to string) {
			data, err := os.ReadFile(filepath.Join("systemd", from))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, to, from), strings.ReplaceAll(string(data), "ExecStart=backing-image-manager ", "ExecStart="+builtImage(t).program+" "))
		}
		put("backing-image-manager.service", "")
		for _, dropIn := range dropIns {
			put(dropIn, "backing-image-manager.service.d")
		}
		if out := run(t, dir, "systemd-analyze", "verify", "--man=no", "./backing-image-manager.service"); strings.Contains(out, "backing-image") {
			t.Errorf("systemd-analyze verify:\n%s", out)
		}
		out := run(t, dir, "systemd-analyze", "security", "--offline=yes", "--threshold=20", "./backing-image-manager.service")
		t.Log(out[strings.LastIndex(out, "Overall"):])
	}
}

func TestSystemd(t *testing.T) {
	for name, config := range map[string]string{"certificates.conf": "kubernetes/base/config", "longhorn.conf": "kubernetes/overlays/longhorn/config"} {
		t.Run(name, func(t *testing.T) {
			u := readUnit(t, "systemd/backing-image-manager.service")
			for _, dropIn := range slices.Compact([]string{"certificates.conf", name}) {
				more := readUnit(t, filepath.Join("systemd", dropIn))
				for key := range maps.Keys(more) {
					u[key] = append(u[key], more[key]...)
				}
			}
			boot(t, u, configFiles(t, config))
		})
	}
}

func boot(t *testing.T, u unit, config map[string]string) {
	f := newFleet(t, declaredNodes(t, config))
	crypto := f.nodeCertificates(t)
	for _, n := range f.nodes {
		write(t, filepath.Join(crypto, n.Name, "token"), "peer fedcba9876543210\nadmin 0123456789abcdef\n")
	}
	user := map[string]int64{"backing-image-manager": 991, "root": 0}[u.last("User")]
	var disks []string
	var started []*container.Container
	for _, n := range f.nodes {
		disk := f.newDisk(t, user, user)
		s := f.service(t, u, n, user, config, filepath.Join(crypto, n.Name))
		s.Mounts = append(s.Mounts, container.Mount{Source: disk, Target: strings.TrimPrefix(u.last("ReadWritePaths"), "-")})
		s.Start(t)
		disks, started = append(disks, disk), append(started, s)
	}
	for _, n := range f.nodes {
		f.waitStatus(t, n.Address+"/readyz", 200)
	}
	copies := 3
	if strings.Contains(config["images.yaml"], "minNumberOfCopies: 2") {
		copies = 2
	}
	f.checkReady(t, disks, copies, uint32(user))
	f.credentialFlags = []string{"--tls-ca", filepath.Join(crypto, "ca.crt"), "--token-file", filepath.Join(crypto, f.nodes[0].Name, "token")}
	f.command(t, f.nodes[0], "status")
	for _, s := range started {
		s.Stop(t)
	}
}

var loaded = regexp.MustCompile(`^(\S+):/etc/backing-image-manager/(\S+)$`)

// service returns the process that systemd starts, with the files that the unit lets it see.
func (f *fleet) service(t *testing.T, u unit, n node, user int64, config map[string]string, crypto string) *container.Container {
	t.Helper()
	stop, err := time.ParseDuration(u.last("TimeoutStopSec"))
	if err != nil {
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
	configDir := t.TempDir()
	for name, text := range config {
		write(t, filepath.Join(configDir, name), text)
	}
	if err := os.Chmod(configDir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.ReplaceAll("/usr/bin/"+u.last("ExecStart"), "%d", folder))
	c := &container.Container{
		Args: args, Hostname: n.Name, Network: f.networks[n.Name], RootFS: f.rootFS(t), UID: user, GID: user, StopTimeout: stop,
		Mounts: []container.Mount{
			f.etcHosts(t), {Source: f.program, Target: args[0], Options: []string{"ro"}},
			{Source: configDir, Target: "/etc/backing-image-manager/config", Options: []string{"ro"}}, {Source: credentials, Target: folder, Options: []string{"ro"}},
		},
	}
	u.restrict(t, c)
	return c
}
