package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// cluster is what a Kubernetes with our manifests consists of, as far as the pods see it.
type cluster struct {
	*fleet
	*manifests
	secrets map[string]map[string]string
	empty   map[string]string // the folder of an emptyDir, by the name of its volume
}

func TestKubernetes(t *testing.T) {
	base := configFiles(t, "kubernetes/base/config")
	for _, tt := range []struct {
		dir    string
		copies int
		images int64 // how often the origin sends one
		before func(t *testing.T, c *cluster, disks []string)
		after  func(t *testing.T, c *cluster)
	}{
		{dir: "kubernetes/base", copies: 3, images: 1},
		{dir: "kubernetes/overlays/token", copies: 3, images: 1},
		{dir: "kubernetes/overlays/longhorn", copies: 2, images: 0, before: byLonghorn},
		{dir: "kubernetes/overlays/git-sync", copies: 3, images: 1, before: unsynced, after: synced},
	} {
		t.Run(filepath.Base(tt.dir), func(t *testing.T) {
			m := render(t, tt.dir)
			m.check(t)
			config := base
			if m.config != nil {
				config = m.config.Data
			}
			nodes := declared(t, config)
			m.checkAddresses(t, nodes)
			c := &cluster{fleet: newFleet(t, nodes), manifests: m, empty: map[string]string{}}
			c.makeSecrets(t)
			c.boot(t, tt.copies, tt.before, tt.after)
			if n := c.images.Load(); n != tt.images {
				t.Errorf("%d images were asked for, want %d", n, tt.images)
			}
		})
	}
}

func (c *cluster) boot(t *testing.T, copies int, before func(*testing.T, *cluster, []string), after func(*testing.T, *cluster)) {
	pod := c.set.Spec.Template.Spec
	owner := *pod.SecurityContext.RunAsUser
	var disks []string
	for range c.members {
		disks = append(disks, c.newDisk(t, owner, *pod.SecurityContext.RunAsGroup))
	}
	if before != nil {
		before(t, c, disks)
	}
	var started []*container
	for i, n := range c.members {
		p := c.pod(t, n, disks[i])
		p.start(t)
		started = append(started, p)
	}
	manager := c.manager(t)
	for _, n := range c.members {
		c.answers(t, probed(t, n, manager, manager.LivenessProbe), 200)
	}
	if after != nil {
		for _, n := range c.members {
			c.answers(t, probed(t, n, manager, manager.ReadinessProbe), 503)
		}
		after(t, c)
	}
	for _, n := range c.members {
		c.answers(t, probed(t, n, manager, manager.ReadinessProbe), 200)
	}
	c.ready(t, disks, copies, uint32(owner))
	for _, p := range started {
		p.stop(t)
	}
}

// probed is the address that a kubelet asks.
func probed(t *testing.T, n node, c corev1.Container, p *corev1.Probe) string {
	t.Helper()
	for _, port := range c.Ports {
		if port.Name == p.HTTPGet.Port.StrVal {
			return fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(p.HTTPGet.Scheme)), n.host(t), port.ContainerPort, p.HTTPGet.Path)
		}
	}
	t.Fatalf("%s has no port %v", c.Name, p.HTTPGet.Port)
	return ""
}

// pod is the manager as a kubelet starts it. With the hostPort the address of the node
// is the pod's, so here it has that address itself.
func (c *cluster) pod(t *testing.T, n node, disk string) *container {
	t.Helper()
	pod, manager := c.set.Spec.Template.Spec, c.manager(t)
	if port := manager.Ports[0]; port.HostPort != port.ContainerPort {
		t.Fatalf("the port is %+v", port)
	}
	p := &container{
		args: []string{c.entrypoint}, hostname: "pod-of-" + n.Name, network: c.nodes[n.Name], rootfs: c.rootfs(t), binds: []bind{c.hosts(t)},
		uid: *pod.SecurityContext.RunAsUser, gid: *pod.SecurityContext.RunAsGroup, groups: []int64{*pod.SecurityContext.FSGroup},
		memory: manager.Resources.Limits.Memory().Value(), stayAsIs: !*manager.SecurityContext.AllowPrivilegeEscalation,
		readOnly: *manager.SecurityContext.ReadOnlyRootFilesystem, terminating: time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second,
	}
	vars := map[string]string{}
	for _, e := range manager.Env {
		if vars[e.Name] = e.Value; e.ValueFrom != nil {
			vars[e.Name] = map[string]string{"spec.nodeName": n.Name}[e.ValueFrom.FieldRef.FieldPath]
		}
		p.env = append(p.env, e.Name+"="+vars[e.Name])
	}
	for _, arg := range manager.Args {
		for name, value := range vars {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		p.args = append(p.args, arg)
	}
	for _, at := range manager.VolumeMounts {
		b := bind{from: c.volume(t, at.Name, disk), at: at.MountPath}
		if at.ReadOnly {
			b.options = append(b.options, "ro")
		}
		if at.MountPropagation != nil {
			b.options = append(b.options, map[corev1.MountPropagationMode]string{corev1.MountPropagationHostToContainer: "rslave"}[*at.MountPropagation])
		}
		p.binds = append(p.binds, b)
	}
	return p
}

// byLonghorn is a disk where Longhorn has left the image. (Its node is second in rank.)
func byLonghorn(t *testing.T, c *cluster, disks []string) {
	write(t, filepath.Join(disks[1], "backing-images/debian-12-6846a0b2/backing"), string(c.content))
}

// unsynced is a volume of git-sync that has not got the repository yet.
func unsynced(t *testing.T, c *cluster, _ []string) {
	c.empty["git"] = filepath.Join(t.TempDir(), "git")
	run(t, "", "install", "-d", "-m", "2777", "-o", "0", "-g", fmt.Sprint(*c.set.Spec.Template.Spec.SecurityContext.FSGroup), c.empty["git"])
}

// synced does what git-sync does then: a worktree beside the others, with the user of its
// container, and a link to it.
func synced(t *testing.T, c *cluster) {
	repo, root := t.TempDir(), c.empty["git"]
	for name, text := range configFiles(t, "kubernetes/base/config") {
		write(t, filepath.Join(repo, name), text)
	}
	git := func(dir string, args ...string) string {
		return strings.TrimSpace(run(t, dir, append([]string{"git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "safe.directory=*"}, args...)...))
	}
	git(repo, "init", "-q", "-b", "main")
	git(repo, "add", ".")
	git(repo, "commit", "-q", "-m", "images")
	revision := git(repo, "rev-parse", "HEAD")
	git(root, "init", "-q")
	git(root, "fetch", "-q", repo, "main")
	tree := filepath.Join(".worktrees", revision)
	git(root, "worktree", "add", "-q", "--detach", tree, revision)
	write(t, filepath.Join(root, tree, ".git"), "gitdir: /git/.git/worktrees/"+revision+"\n") // as it is called in the pods
	run(t, "", "chown", "-R", "65533:65533", filepath.Join(root, ".git"), filepath.Join(root, ".worktrees"))
	if err := os.Symlink(tree, filepath.Join(root, "current")); err != nil {
		t.Fatal(err)
	}
	n := c.members[0]
	c.answers(t, probed(t, n, c.manager(t), c.manager(t).ReadinessProbe), 200)
	var status struct {
		Config struct {
			Revision string `json:"revision"`
		} `json:"config"`
	}
	out := c.ask(t, n, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Config.Revision != revision {
		t.Errorf("the revision is %q, want %s: error %v in %s", status.Config.Revision, revision, err, out)
	}
}

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

func ownerOf(t *testing.T, file string) uint32 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}
