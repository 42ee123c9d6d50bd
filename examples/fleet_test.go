package examples

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/internal/testx/container"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// timeout is for events that take milliseconds on an idle machine.
const timeout = 60 * time.Second

// node is a node that the examples declare.
type node struct {
	Name    string `json:"-"`
	Address string `json:"address"`
}

// declaredNodes returns the nodes of a configuration, sorted by name.
func declaredNodes(t *testing.T, config map[string]string) []node {
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
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// host returns the host name or IP address of the node.
func (n node) host(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(n.Address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname()
}

// fleet is a network in which nodes run the program of the container image, and reach an
// upstream server.
type fleet struct {
	image
	upstream        *upstream
	bridge          netns.Namespace            // of the test, the upstream and the bridge between all nodes
	networks        map[string]netns.Namespace // by node
	nodes           []node
	content         []byte   // of the declared disk image
	credentialFlags []string // with which commands call daemons
}

const (
	upstreamHost    = "cloud.debian.org"
	upstreamPath    = "/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"
	upstreamAddress = "192.0.2.1"
)

func newFleet(t *testing.T, nodes []node) *fleet {
	t.Helper()
	need.Containers(t)
	need.Programs(t, "openssl", "git")
	f := &fleet{image: builtImage(t), nodes: nodes, content: realImage(t), networks: map[string]netns.Namespace{}}
	f.connect(t)
	f.serve(t, map[string][]byte{
		upstreamPath:                           f.content,
		path.Dir(upstreamPath) + "/SHA512SUMS": fmt.Appendf(nil, "%x  %s\n", sha512.Sum512(f.content), path.Base(upstreamPath)),
	})
	return f
}

// connect makes the network: a namespace for each node, and links to a bridge.
func (f *fleet) connect(t *testing.T) {
	t.Helper()
	f.bridge = netns.New(t, fmt.Sprintf("bimlan%d", os.Getpid()))
	f.bridge.IP(t, "link", "add", "br0", "type", "bridge")
	f.bridge.IP(t, "addr", "add", upstreamAddress+"/24", "dev", "br0")
	f.bridge.IP(t, "link", "set", "br0", "up")
	for _, n := range f.nodes {
		ns := netns.New(t, string(f.bridge)+"-"+n.Name)
		f.networks[n.Name] = ns
		ns.Link(t, "eth0", f.bridge, n.Name)
		ns.IP(t, "addr", "add", n.host(t)+"/24", "dev", "eth0")
		ns.IP(t, "link", "set", "eth0", "up")
		f.bridge.IP(t, "link", "set", n.Name, "master", "br0", "up")
	}
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

// upstream is the part of the web that the examples refer to.
type upstream struct {
	files  map[string][]byte
	images atomic.Int64 // number of requests for an image
	ca     []byte
}

// serve runs a server for https://cloud.debian.org until the test ends.
func (f *fleet) serve(t *testing.T, files map[string][]byte) {
	t.Helper()
	dir := filepath.Join(certificates(t, map[string]string{"upstream": upstreamHost}), "upstream")
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	f.upstream = &upstream{files: files, ca: ca}
	var listener net.Listener
	if err := f.bridge.Enter(func() error {
		listener, err = net.Listen("tcp", upstreamAddress+":443")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f.upstream}
	go func() { _ = server.ServeTLS(listener, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, ok := u.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if filepath.Base(r.URL.Path) != "SHA512SUMS" {
		u.images.Add(1)
	}
	_, _ = w.Write(data) // the client may disconnect
}

// certificates runs the script of the examples in a new folder, for each name with its address, and
// for an admin.
func certificates(t *testing.T, addresses map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script, err := filepath.Abs("kubernetes/certificate")
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range addresses {
		run(t, dir, script, name, address)
	}
	run(t, dir, "env", "ORGANIZATION=backing-image-manager:admin", script, "admin")
	return dir
}

// nodeCertificates makes a folder with a certificate for each node, and lets commands use that of the
// admin.
func (f *fleet) nodeCertificates(t *testing.T) (dir string) {
	t.Helper()
	addresses := map[string]string{}
	for _, n := range f.nodes {
		addresses[n.Name] = n.host(t)
	}
	dir = certificates(t, addresses)
	admin := func(file string) string { return filepath.Join(dir, "admin", file) }
	f.credentialFlags = []string{"--tls-ca", admin("ca.crt"), "--tls-cert", admin("tls.crt"), "--tls-key", admin("tls.key")}
	return dir
}

// rootFS returns a root file system with the files of the container image, and with the
// certificate authority of the upstream.
func (f *fleet) rootFS(t *testing.T) string {
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
		write(t, to, string(f.upstream.ca))
	}
	return root
}

// newDisk makes a disk as the examples describe it.
func (f *fleet) newDisk(t *testing.T, owner, group int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	run(t, "", "install", "-d", "-m", "0755", "-o", fmt.Sprint(owner), "-g", fmt.Sprint(group), dir)
	run(t, "", f.program, "disk", "init", dir)
	return dir
}

// etcHosts returns the /etc/hosts of a node.
func (f *fleet) etcHosts(t *testing.T) container.Mount {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts")
	write(t, file, "127.0.0.1 localhost\n"+upstreamAddress+" "+upstreamHost+"\n")
	return container.Mount{Source: file, Target: "/etc/hosts", Options: []string{"ro"}}
}

// waitStatus waits until a GET of the address returns the status. Like a kubelet it does not
// verify the certificate, and presents none.
func (f *fleet) waitStatus(t *testing.T, address string, status int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			return conn, f.bridge.Enter(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
		},
	}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(timeout)
	for last := ""; ; {
		response, err := client.Get(address)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == status {
				return
			}
			last = response.Status
		} else {
			last = err.Error()
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: got %s; want %s", address, last, http.StatusText(status))
		}
	}
}

// command runs a command of the program against the daemon of a node.
func (f *fleet) command(t *testing.T, n node, args ...string) string {
	t.Helper()
	line := append(append(f.bridge.Exec(), f.program), args...)
	return run(t, "", append(append(line, "--url", n.Address), f.credentialFlags...)...)
}

// checkReady waits until all daemons are ready, and checks that the disks have this number of
// copies.
func (f *fleet) checkReady(t *testing.T, disks []string, copies int, owner uint32) {
	t.Helper()
	for _, n := range f.nodes {
		f.command(t, n, "wait", "--for", "ready", "--timeout", timeout.String())
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
				t.Errorf("%s does not have the bytes of the upstream (error %v)", file, err)
			}
			if uid := ownerOf(t, file); uid != owner {
				t.Errorf("the owner of %s is %d; want %d", file, uid, owner)
			}
		}
	}
	if found != copies {
		t.Errorf("%d copies on %d disks; want %d", found, len(disks), copies)
	}
}

func ownerOf(t *testing.T, file string) uint32 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// configFiles returns the files of a config directory.
func configFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("files %q, error %v", names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = string(data)
	}
	return files
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, line ...string) string {
	t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", line, err, out)
	}
	return string(out)
}
