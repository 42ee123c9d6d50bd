package examples

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/seed-26586806/backing-image-manager/internal/testx/container"
)

// cluster is the part of a Kubernetes cluster with our manifests that the pods see.
type cluster struct {
	*fleet
	*manifests
	secrets      map[string]map[string]string
	certificates string            // the folder with a folder for each node
	empty        map[string]string // folders of emptyDir volumes, by name
}

func TestKubernetes(t *testing.T) {
	base := configFiles(t, "kubernetes/base/config")
	for _, tt := range []struct {
		dir    string
		copies int
		images int64                                          // requests for an image that the upstream receives
		before func(t *testing.T, c *cluster, disks []string) // before the pods start
		after  func(t *testing.T, c *cluster)                 // after they started
	}{
		{dir: "kubernetes/base", copies: 3, images: 1},
		{dir: "kubernetes/overlays/token", copies: 3, images: 1},
		{dir: "kubernetes/overlays/longhorn", copies: 2, images: 0, before: putLonghornImage},
		{dir: "kubernetes/overlays/git-sync", copies: 3, images: 1, before: makeEmptyGitVolume, after: syncGit},
	} {
		t.Run(filepath.Base(tt.dir), func(t *testing.T) {
			m := render(t, tt.dir)
			m.check(t)
			config := base
			if m.config != nil {
				config = m.config.Data
			}
			nodes := declaredNodes(t, config)
			m.checkAddresses(t, nodes)
			c := &cluster{fleet: newFleet(t, nodes), manifests: m, empty: map[string]string{}}
			c.makeSecrets(t)
			c.boot(t, tt.copies, tt.before, tt.after)
			if n := c.upstream.images.Load(); n != tt.images {
				t.Errorf("%d requests for an image; want %d", n, tt.images)
			}
		})
	}
}

func (c *cluster) boot(t *testing.T, copies int, before func(*testing.T, *cluster, []string), after func(*testing.T, *cluster)) {
	pod := c.set.Spec.Template.Spec
	owner := *pod.SecurityContext.RunAsUser
	var disks []string
	for range c.nodes {
		disks = append(disks, c.newDisk(t, owner, *pod.SecurityContext.RunAsGroup))
	}
	if before != nil {
		before(t, c, disks)
	}
	var started []*container.Container
	for i, n := range c.nodes {
		p := c.pod(t, n, disks[i])
		p.Start(t)
		started = append(started, p)
	}
	manager := c.manager(t)
	for _, n := range c.nodes {
		c.waitStatus(t, probeURL(t, n, manager, manager.LivenessProbe), 200)
	}
	if after != nil {
		for _, n := range c.nodes {
			c.waitStatus(t, probeURL(t, n, manager, manager.ReadinessProbe), 503)
		}
		after(t, c)
	}
	for _, n := range c.nodes {
		c.waitStatus(t, probeURL(t, n, manager, manager.ReadinessProbe), 200)
	}
	c.checkReady(t, disks, copies, uint32(owner))
	for _, p := range started {
		p.Stop(t)
	}
}

// probeURL returns the URL that a kubelet requests for a probe.
func probeURL(t *testing.T, n node, c corev1.Container, p *corev1.Probe) string {
	t.Helper()
	for _, port := range c.Ports {
		if port.Name == p.HTTPGet.Port.StrVal {
			return fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(p.HTTPGet.Scheme)), n.host(t), port.ContainerPort, p.HTTPGet.Path)
		}
	}
	t.Fatalf("%s has no port %v", c.Name, p.HTTPGet.Port)
	return ""
}

// pod returns the manager's container as a kubelet starts it. A hostPort gives the pod the address
// of its node; here the pod has that address itself.
func (c *cluster) pod(t *testing.T, n node, disk string) *container.Container {
	t.Helper()
	pod, manager := c.set.Spec.Template.Spec, c.manager(t)
	if port := manager.Ports[0]; port.HostPort != port.ContainerPort {
		t.Fatalf("the port is %+v", port)
	}
	p := &container.Container{
		Args: []string{c.entrypoint}, Hostname: "pod-of-" + n.Name, Network: c.networks[n.Name], RootFS: c.rootFS(t), Mounts: []container.Mount{c.etcHosts(t)},
		UID: *pod.SecurityContext.RunAsUser, GID: *pod.SecurityContext.RunAsGroup, Groups: []int64{*pod.SecurityContext.FSGroup},
		Memory: manager.Resources.Limits.Memory().Value(), NoNewPrivileges: !*manager.SecurityContext.AllowPrivilegeEscalation,
		ReadOnly: *manager.SecurityContext.ReadOnlyRootFilesystem, StopTimeout: time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second,
	}
	if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the profile of seccomp is %+v", pod.SecurityContext.SeccompProfile)
	}
	p.Seccomp = runtimeDefault(t)
	vars := map[string]string{}
	for _, e := range manager.Env {
		if vars[e.Name] = e.Value; e.ValueFrom != nil {
			vars[e.Name] = map[string]string{"spec.nodeName": n.Name}[e.ValueFrom.FieldRef.FieldPath]
		}
		p.Env = append(p.Env, e.Name+"="+vars[e.Name])
	}
	for _, arg := range manager.Args {
		for name, value := range vars {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		p.Args = append(p.Args, arg)
	}
	for _, at := range manager.VolumeMounts {
		m := container.Mount{Source: c.volume(t, at.Name, n, disk), Target: at.MountPath}
		if at.ReadOnly {
			m.Options = append(m.Options, "ro")
		}
		if at.MountPropagation != nil {
			m.Options = append(m.Options, map[corev1.MountPropagationMode]string{corev1.MountPropagationHostToContainer: "rslave"}[*at.MountPropagation])
		}
		p.Mounts = append(p.Mounts, m)
	}
	return p
}

// putLonghornImage puts the image, as Longhorn leaves it, on the disk of the node with the second
// rank.
func putLonghornImage(t *testing.T, c *cluster, disks []string) {
	write(t, filepath.Join(disks[1], "backing-images/debian-12-6846a0b2/backing"), string(c.content))
}

// makeEmptyGitVolume makes the volume of git-sync as it is before the first clone.
func makeEmptyGitVolume(t *testing.T, c *cluster, _ []string) {
	c.empty["git"] = filepath.Join(t.TempDir(), "git")
	run(t, "", "install", "-d", "-m", "2777", "-o", "0", "-g", fmt.Sprint(*c.set.Spec.Template.Spec.SecurityContext.FSGroup), c.empty["git"])
}

// syncGit does the steps of git-sync: a clone, a worktree owned by the user of its container, and
// a symlink to the worktree.
func syncGit(t *testing.T, c *cluster) {
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
	write(t, filepath.Join(root, tree, ".git"), "gitdir: /git/.git/worktrees/"+revision+"\n") // its path in the pods
	run(t, "", "chown", "-R", "65533:65533", filepath.Join(root, ".git"), filepath.Join(root, ".worktrees"))
	if err := os.Symlink(tree, filepath.Join(root, "current")); err != nil {
		t.Fatal(err)
	}
	n := c.nodes[0]
	c.waitStatus(t, probeURL(t, n, c.manager(t), c.manager(t).ReadinessProbe), 200)
	var status struct {
		Config struct {
			Revision string `json:"revision"`
		} `json:"config"`
	}
	out := c.command(t, n, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Config.Revision != revision {
		t.Errorf("the revision is %q; want %s; error %v in %s", status.Config.Revision, revision, err, out)
	}
}

// volume returns the folder that a kubelet mounts.
func (c *cluster) volume(t *testing.T, name string, n node, disk string) string {
	t.Helper()
	for _, v := range c.set.Spec.Template.Spec.Volumes {
		switch {
		case v.Name != name:
		case v.ConfigMap != nil:
			return c.atomicFolder(t, c.config.Data, 0o644)
		case v.Secret != nil:
			return c.atomicFolder(t, c.secret(t, v.Secret.SecretName, nil), *v.Secret.DefaultMode)
		case v.Projected != nil:
			files := map[string]string{}
			for _, source := range v.Projected.Sources {
				data := c.secret(t, source.Secret.Name, source.Secret.Optional)
				for _, item := range source.Secret.Items {
					if text, ok := data[item.Key]; ok {
						files[item.Path] = text
					}
				}
			}
			return c.atomicFolder(t, files, *v.Projected.DefaultMode)
		case v.EmptyDir != nil:
			return c.empty[name]
		case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectory && name == "tls":
			return c.installCertificate(t, n)
		case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectory:
			return disk
		}
	}
	t.Fatalf("the test cannot make a volume %s", name)
	return ""
}

// installCertificate copies the certificate of a node to it, as a comment in the examples describes.
func (c *cluster) installCertificate(t *testing.T, n node) string {
	t.Helper()
	dir, group := filepath.Join(t.TempDir(), "tls"), fmt.Sprint(*c.set.Spec.Template.Spec.SecurityContext.FSGroup)
	run(t, "", "install", "-d", "-m", "0750", "-g", group, dir)
	run(t, filepath.Join(c.certificates, n.Name), "install", "-m", "0640", "-g", group, "ca.crt", "tls.crt", "tls.key", dir)
	return dir
}

func (c *cluster) secret(t *testing.T, name string, optional *bool) map[string]string {
	t.Helper()
	data, ok := c.secrets[name]
	if !ok && (optional == nil || !*optional) {
		t.Fatalf("there is no secret %s", name)
	}
	return data
}

// atomicFolder makes a folder as a kubelet does: files behind two symlinks, so that an update
// takes effect at once. Their owner is root, and the group of the pod may read them.
func (c *cluster) atomicFolder(t *testing.T, files map[string]string, mode int32) string {
	t.Helper()
	dir := t.TempDir()
	group := int(*c.set.Spec.Template.Spec.SecurityContext.FSGroup)
	const version = "..2026_11_21_22_00_00.1234567890"
	if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(version, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	tops := map[string]bool{}
	for name, text := range files {
		file := filepath.Join(dir, version, name)
		write(t, file, text)
		if err := os.Chown(file, 0, group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, os.FileMode(mode)); err != nil {
			t.Fatal(err)
		}
		top, _, _ := strings.Cut(name, "/")
		tops[top] = true
	}
	for top := range maps.Keys(tops) {
		if err := os.Symlink("..data/"+top, filepath.Join(dir, top)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// makeSecrets makes the secrets and certificates that comments in the examples describe.
func (c *cluster) makeSecrets(t *testing.T) {
	t.Helper()
	const admin = "0123456789abcdef"
	c.certificates = c.nodeCertificates(t)
	c.secrets = map[string]map[string]string{
		"backing-image-manager-token": {"token": "peer fedcba9876543210\nadmin " + admin + "\n"},
	}
	if strings.HasPrefix(c.nodes[0].Address, "http://") {
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, admin)
		c.credentialFlags = []string{"--token-file", file}
	}
}
