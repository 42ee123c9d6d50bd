package examples

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// volume is the folder that a kubelet mounts.
func (c *cluster) volume(t *testing.T, name, disk string) string {
	t.Helper()
	for _, v := range c.set.Spec.Template.Spec.Volumes {
		switch {
		case v.Name != name:
		case v.ConfigMap != nil:
			return c.atomic(t, c.config.Data, 0o644)
		case v.Secret != nil:
			return c.atomic(t, c.secret(t, v.Secret.SecretName, nil), *v.Secret.DefaultMode)
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
			return c.atomic(t, files, *v.Projected.DefaultMode)
		case v.EmptyDir != nil:
			return c.empty[name]
		case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectory:
			return disk
		}
	}
	t.Fatalf("there is no volume %s that this test can make", name)
	return ""
}

func (c *cluster) secret(t *testing.T, name string, optional *bool) map[string]string {
	t.Helper()
	data, ok := c.secrets[name]
	if !ok && (optional == nil || !*optional) {
		t.Fatalf("there is no secret %s", name)
	}
	return data
}

// atomic lays files as a kubelet does, so that they change all at once: behind two links.
// They are root's, and may be read by the group of the pod.
func (c *cluster) atomic(t *testing.T, files map[string]string, mode int32) string {
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

// makeSecrets makes those that the comments in the examples tell to make.
func (c *cluster) makeSecrets(t *testing.T) {
	t.Helper()
	const admin = "0123456789abcdef"
	crypto := c.memberCertificates(t)
	c.secrets = map[string]map[string]string{
		"backing-image-manager-token": {"token": "peer fedcba9876543210\nadmin " + admin + "\n"},
		"backing-image-manager-tls":   {},
	}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		data, err := os.ReadFile(filepath.Join(crypto, name))
		if err != nil {
			t.Fatal(err)
		}
		c.secrets["backing-image-manager-tls"][name] = string(data)
	}
	if strings.HasPrefix(c.members[0].Address, "http://") {
		file := filepath.Join(t.TempDir(), "token")
		write(t, file, admin)
		c.presents = []string{"--token-file", file}
	}
}
