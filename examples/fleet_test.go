package examples

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// node is what the examples declare of one.
type node struct {
	Name    string `json:"-"`
	Address string `json:"address"`
}

// declared are the nodes of a configuration, by name.
func declared(t *testing.T, config map[string]string) []node {
	t.Helper()
	var c struct {
		Nodes map[string]node `json:"nodes"`
	}
	if err := yaml.Unmarshal([]byte(config["nodes.yaml"]), &c); err != nil || len(c.Nodes) == 0 {
		t.Fatalf("nodes %+v, error %v", c, err)
	}
	var nodes []node
	for name, n := range c.Nodes {
		n.Name = name
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b node) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return nodes
}

// host is the name or the number in the address.
func (n node) host(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(n.Address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname()
}

// fleet are nodes with the program of our image, and the web as far as they need it.
type fleet struct {
	*lan
	*origin
	image
	members  []node
	content  []byte // of the image that is declared
	presents []string
}

const webHost, webPath = "cloud.debian.org", "/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"

func newFleet(t *testing.T, members []node) *fleet {
	t.Helper()
	need.Containers(t)
	need.Programs(t, "openssl", "git")
	f := &fleet{image: theImage(t), members: members, content: realImage(t)}
	addresses := map[string]string{}
	for _, n := range members {
		addresses[n.Name] = n.host(t)
	}
	f.lan = newLAN(t, addresses)
	f.origin = f.serve(t, webHost, map[string][]byte{
		webPath: f.content, path.Dir(webPath) + "/SHA512SUMS": fmt.Appendf(nil, "%x  %s\n", sha512.Sum512(f.content), path.Base(webPath)),
	})
	return f
}

func realImage(t *testing.T) []byte {
	t.Helper()
	packed, err := os.ReadFile("../disk/testdata/good/v3.qcow2.gz")
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// certificates runs the example's script for the addresses, and for an admin.
func certificates(t *testing.T, addresses ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script, err := filepath.Abs("kubernetes/certificate")
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, append([]string{script}, addresses...)...)
	run(t, dir, "env", "NAME=admin", "ORGANIZATION=backing-image-manager:admin", script)
	return dir
}

// memberCertificates are good for all nodes, and the commands of the test show the admin's.
func (f *fleet) memberCertificates(t *testing.T) (dir string) {
	t.Helper()
	var hosts []string
	for _, n := range f.members {
		hosts = append(hosts, n.host(t))
	}
	dir = certificates(t, hosts...)
	f.presents = []string{"--tls-ca", filepath.Join(dir, "ca.crt"), "--tls-cert", filepath.Join(dir, "admin.crt"), "--tls-key", filepath.Join(dir, "admin.key")}
	return dir
}

// rootfs is a root file system with what the image has, and with the authority of our web.
func (f *fleet) rootfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range f.copies {
		to = filepath.Join(root, to)
		if path.Base(from) == "backing-image-manager" {
			if err := os.Link(f.program, to); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, to, string(f.ca))
	}
	return root
}

// newDisk makes the folder of a disk as the examples say, and returns it.
func (f *fleet) newDisk(t *testing.T, owner, group int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	run(t, "", "install", "-d", "-m", "0755", "-o", fmt.Sprint(owner), "-g", fmt.Sprint(group), dir)
	run(t, "", f.program, "disk", "init", dir)
	return dir
}

// hosts is the /etc/hosts of a node.
func (f *fleet) hosts(t *testing.T) bind {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts")
	write(t, file, "127.0.0.1 localhost\n"+bridgeAddress+" "+webHost+"\n")
	return bind{from: file, at: "/etc/hosts", options: []string{"ro"}}
}

// answers waits until the address answers with the status.
func (f *fleet) answers(t *testing.T, address string, status int) {
	t.Helper()
	client := f.client()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for last := ""; ; {
		answer, err := client.Get(address)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == status {
				return
			}
			last = answer.Status
		} else {
			last = err.Error()
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s still answers %s, want %s", address, last, http.StatusText(status))
		}
	}
}

// ask runs a command against the daemon of a node.
func (f *fleet) ask(t *testing.T, n node, command ...string) string {
	t.Helper()
	line := append([]string{"ip", "netns", "exec", f.bridge, f.program}, command...)
	return run(t, "", append(append(line, "--url", n.Address), f.presents...)...)
}

// ready waits until all have what is declared, and looks at so many disks for it.
func (f *fleet) ready(t *testing.T, disks []string, copies int, owner uint32) {
	t.Helper()
	for _, n := range f.members {
		f.ask(t, n, "wait", "--for", "ready", "--timeout", patience.String())
	}
	found := 0
	for _, disk := range disks {
		files, err := filepath.Glob(filepath.Join(disk, "backing-images/debian-12-*/backing"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			found++
			if data, err := os.ReadFile(file); err != nil || !bytes.Equal(data, f.content) {
				t.Errorf("%s has other bytes, or error %v", file, err)
			}
			if uid := ownerOf(t, file); uid != owner {
				t.Errorf("%s is owned by %d, want %d", file, uid, owner)
			}
		}
	}
	if found != copies {
		t.Errorf("%d copies on %d disks, want %d", found, len(disks), copies)
	}
}
