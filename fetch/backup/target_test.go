package backup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

func TestOpenTargets(t *testing.T) {
	dir := t.TempDir()
	c := &fetch.Client{FileRoots: []string{dir}, SecretsDir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(dir, "a b%20"), 0o755); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"s3://backupbucket@us-east-1/":         "s3://backupbucket@us-east-1",
		"s3://backupbucket@us-east-1/deep/er/": "s3://backupbucket@us-east-1/deep/er",
		"s3://backupbucket/deep":               "s3://backupbucket/deep",
		"s3::https://host:9000/bucket/deep/":   "s3::https://host:9000/bucket/deep",
		"vfs://" + dir:                         dir,
		"file://" + dir + "/a%20b%2520":        dir + "/a b%20",
		dir + "/a b%20/":                       dir + "/a b%20",
	} {
		if got := mustOpen(t, c, target, "").String(); got != want {
			t.Errorf("%s is %s, want %s", target, got, want)
		}
	}
	const secret = "s3cr3t"
	for _, tt := range []struct {
		target string
		class  fetch.Class
		words  string
	}{
		{"", fetch.BadConfig, "not an address"},
		{"backups", fetch.BadConfig, "not an address"},
		{"cifs://host/share", fetch.BadConfig, "cifs:// are not supported"},
		{"azblob://container@core.windows.net/", fetch.BadConfig, "azblob:// are not supported"},
		{"ftp://user:" + secret + "@host/", fetch.BadConfig, "ftp:// are not supported"},
		{"nfs://user:" + secret + "@host/path", fetch.BadConfig, "user or password"},
		{"s3://key:" + secret + "@bucket/", fetch.BadConfig, "user or password"},
		{"s3://bucket", fetch.BadConfig, "no path"},
		{"s3://b/path", fetch.BadConfig, "has no valid bucket name"},
		{"s3://bucket/path?sig=" + secret, fetch.BadConfig, "query"},
		{"s3::http://host/bucket?a=" + secret, fetch.BadConfig, "query"},
		{"s3::http://127.0.0.1/bucket", fetch.BadConfig, "loopback"},
		{"nfs://host", fetch.BadConfig, "no path"},
		{"nfs://:/path", fetch.BadConfig, "has no host"},
		{"nfs://host.example:/exported/backups", fetch.Refused, "nfs://host.example:/exported/backups is not mounted on this machine: mount it (mount -t nfs host.example:/exported/backups"},
		{"file://host" + dir, fetch.BadConfig, "file:///path"},
		{"vfs://" + dir + "?a=b", fetch.BadConfig, "vfs:///path"},
		{dir + "/away", fetch.Refused, "no such file"},
		{"vfs:///proc", fetch.BadConfig, "/proc is not below an allowed folder"},
	} {
		_, err := openStore(c, tt.target, "")
		wantError(t, err, tt.class, tt.words)
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
}

// TestShareMountPoint finds shares in a table of mounts in the format of Linux. DEV is replaced by
// the device of the test's folder, which represents the share.
func TestShareMountPoint(t *testing.T) {
	dir := t.TempDir()
	blank := filepath.Join(dir, "back ups")
	if err := os.Mkdir(blank, 0o755); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	table := strings.NewReplacer("DEV", device, "DIR", dir).Replace(`22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 DEV / DIR/back\040ups rw,relatime shared:12 - nfs4 Server.Example:/exported/back\040ups rw,vers=4.2
31 22 DEV /sub DIR rw - nfs [fd00::1]:/ ro,vers=3
32 22 DEV / DIR rw - nfs4 10.0.0.1:/deep rw
33 22 0:999 / DIR rw - nfs4 10.0.0.1:/hidden rw
34 22 DEV / DIR rw - cifs 10.0.0.1:/windows rw
35 22 DEV / DIR/away rw - nfs4 10.0.0.1:/away rw
36 22 DEV / DIR rw shared:2
37 22
`)
	for target, want := range map[share]string{
		{"server.example", "/exported/back ups"}:       blank,
		{"server.example", "/exported/back ups/below"}: blank + "/below",
		{"server.example", "/exported"}:                "",
		{"server.example", "/exported/back upsetting"}: "",
		{"other.example", "/exported/back ups"}:        "",
		{"fd00::1", "/sub/a"}:                          dir + "/a",
		{"fd00::1", "/"}:                               "",
		{"10.0.0.1", "/deep"}:                          dir,
		{"10.0.0.1", "/hidden"}:                        "",
		{"10.0.0.1", "/windows"}:                       "",
		{"10.0.0.1", "/away"}:                          "",
	} {
		got, mounted, err := target.mountPoint(strings.NewReader(table))
		if err != nil || mounted != (want != "") || got != want {
			t.Errorf("%v is mounted at %q, want %q (error %v)", &target, got, want, err)
		}
	}
	if got := (&share{"fd00::1", "/a"}).String(); got != "nfs://[fd00::1]:/a" {
		t.Errorf("a share is %s", got)
	}
}

// FuzzParseMount parses lines with any path and share. The result must be an absolute path of the
// given share.
func FuzzParseMount(f *testing.F) {
	f.Add("30 22 0:45 / /mnt/back\\040ups rw,relatime shared:12 - nfs4 server:/exported rw,vers=4.2", "server", "/exported/a")
	f.Add("31 22 0:46 /sub /mnt rw - nfs [fd00::1]:/ ro", "fd00::1", "/sub")
	f.Add(`31 22 0:46 /../.. /mnt\777\04 rw - nfs a:/..\134/ ro`, "a", "/")
	f.Fuzz(func(t *testing.T, line, host, path string) {
		m, ok := parseMount(line)
		if !ok {
			return
		}
		if !filepath.IsAbs(m.share.path) || strings.Contains(m.share.path+"/", "/../") {
			t.Errorf("%q is parsed as the share %q", line, m.share.path)
		}
		s := share{host, filepath.Clean("/" + path)}
		if at, ok := m.path(s); ok && (host != m.share.host || at != m.at && !strings.HasPrefix(at, strings.TrimSuffix(m.at, "/")+"/")) {
			t.Errorf("%v is mounted at %q by %q", &s, at, line)
		}
	})
}
