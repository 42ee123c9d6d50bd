package edit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.ChildMain() // CUE is evaluated in a child process
	os.Exit(m.Run())
}

const (
	oldURL, newURL = "https://example.com/a-1.raw", "https://example.com/a-2.raw"
	oldSum, newSum = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// editDir writes files to a directory, and edits the image "golden" in them.
func editDir(t *testing.T, files map[string]string) (string, configdir.Snapshot, Edited) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		text = strings.NewReplacer("OLDURL", oldURL, "OLDSUM", oldSum).Replace(text)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	s, err := configdir.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := load.NewLoader().Load(t.Context(), s)
	if len(before.Errors) > 0 {
		t.Fatal(before.Errors)
	}
	sum, err := ident.ParseDigest(newSum)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := Edit(t.Context(), s, before, map[string]Values{"golden": {URL: newURL, Checksum: sum}})
	if err != nil {
		t.Fatal(err)
	}
	return dir, s, edited
}

func TestEditAndWrite(t *testing.T) {
	for name, text := range map[string]string{
		"plain.yaml":    "images:\n  golden: # x\n    source: {download: {url: OLDURL}}\n    checksum: OLDSUM\n",
		"map.yaml":      "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a.yaml: |\n    images:\n      golden:\n        source: {download: {url: 'OLDURL'}}\n        checksum: \"OLDSUM\"\n",
		"longhorn.yaml": "apiVersion: longhorn.io/v1beta2\nkind: BackingImage\nmetadata: {name: golden}\nspec:\n  sourceType: download\n  sourceParameters: {url: OLDURL}\n  checksum: OLDSUM\n",
		"cdi.yaml":      "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: golden}\nspec:\n  source: {http: {url: OLDURL, checksum: 'OLDSUM'}}\n  storage: {}\n",
		"a.json":        `{"images": {"golden": {"source": {"download": {"url": "OLDURL"}}, "checksum": "OLDSUM"}}}`,
		"a.cue":         "package a\n\nimages: golden: {\n\tsource: download: url: \"OLDURL\"\n\tchecksum: \"OLDSUM\" // x\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir, s, edited := editDir(t, map[string]string{name: text})
			if len(edited.Refused) > 0 || len(edited.Files) != 1 || len(edited.Places["golden"]) != 2 {
				t.Fatalf("%+v", edited)
			}
			if err := Write(dir, s, edited.Files); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, name))
			want := strings.NewReplacer("OLDURL", newURL, "OLDSUM", newSum).Replace(text)
			if err != nil || string(got) != want {
				t.Errorf("%v: got\n%s", err, got)
			}
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("the mode is %v (%v)", info.Mode(), err)
			}
			if err := Write(dir, s, edited.Files); err == nil {
				t.Error("a file that changed since it was read was written")
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("%v is in the directory (%v)", entries, err)
			}
		})
	}
}

// The addresses of the list and of its signature are edited where they are. If that is not possible, the message has the
// lines to write, without secrets.
func TestAddressesOfListsAreEdited(t *testing.T) {
	old := strings.NewReplacer("VERSION", "1", "DIGEST", "sha256:"+strings.Repeat("a", 64))
	next := strings.NewReplacer("VERSION", "2", "DIGEST", "sha256:"+strings.Repeat("b", 64))
	digest, err := ident.ParseDigest(next.Replace("DIGEST"))
	if err != nil {
		t.Fatal(err)
	}
	const url, list = "https://example.com/VERSION/a.raw", "https://example.com/VERSION/SHA256SUMS?token=hunter2"
	want := Values{URL: next.Replace(url), Checksum: digest, ChecksumURL: next.Replace(list), SignatureURL: next.Replace(url + ".asc")}
	for name, text := range map[string]string{
		"a.yaml": "images:\n  golden:\n    source: {download: {checksumURL: '" + list + "', url: " + url + "}}\n    checksum: DIGEST\n" +
			"    verify:\n      openpgp: {keys: a, signatureURL: \"" + url + ".asc\"} # x\n",
		"a.json": `{"images": {"golden": {"verify": {"minisign": {"keys": "a", "signatureURL": "` + url + `.asc"}}, "source": {"download": {"url": "` + url + `", "checksumURL": "` + list + `"}}, "checksum": "DIGEST"}}}`,
		"a.cue": "images: golden: {\n\tsource: download: {url: \"" + url + "\", checksumURL: \"" + list + "\"}\n\tchecksum: \"DIGEST\"\n" +
			"\tverify: openpgp: {keys: \"a\", signatureURL: \"" + url + ".asc\"}\n}\n",
		"b.cue": "_v: \"VERSION\"\nimages: golden: {\n\tsource: download: {url: \"https://example.com/\\(_v)/a.raw\", checksumURL: \"" + list + "\"}\n\tchecksum: \"DIGEST\"\n" +
			"\tverify: openpgp: {keys: \"a\", signatureURL: \"" + url + ".asc\"}\n}\n",
	} {
		s := configdir.Snapshot{Files: []configdir.File{{Path: name, Data: []byte(old.Replace(text))}}}
		edited, err := Edit(t.Context(), s, load.NewLoader().Load(t.Context(), s), map[string]Values{"golden": want})
		if err != nil {
			t.Fatal(err)
		}
		refusal := edited.Refused["golden"]
		if name == "b.cue" {
			if refusal == nil || !strings.Contains(refusal.Error(), `checksumURL: "https://example.com/2/SHA256SUMS", signatureURL: "https://example.com/2/a.raw.asc"`) ||
				strings.Contains(refusal.Error(), "hunter2") {
				t.Errorf("%s: got %v", name, refusal)
			}
			continue
		}
		if refusal != nil || len(edited.Files) != 1 || string(edited.Files[0].Data) != next.Replace(text) || len(edited.Places["golden"]) != 4 {
			t.Errorf("%s: got %v, %s", name, refusal, edited.Files)
		}
	}
}

// A VirtualMachineImage can only have a SHA-512, so a SHA-256 is not written to it.
func TestVirtualMachineImageIsEdited(t *testing.T) {
	const manifest = "apiVersion: harvesterhci.io/v1beta1\nkind: VirtualMachineImage\nmetadata: {name: b, namespace: a}\n" +
		"spec:\n  displayName: x\n  sourceType: download\n  url: URL # x\n  checksum: SUM\n"
	write := func(url, sum string) string { return strings.NewReplacer("URL", url, "SUM", sum).Replace(manifest) }
	text := write(oldURL, strings.Repeat("a", 128))
	s := configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}}}
	before := load.NewLoader().Load(t.Context(), s)
	if len(before.Errors) > 0 {
		t.Fatal(before.Errors)
	}
	for sum, want := range map[string]string{strings.Repeat("b", 128): write(newURL, strings.Repeat("b", 128)), "sha256:" + strings.Repeat("b", 64): ""} {
		digest, err := ident.ParseDigest(sum)
		if err != nil {
			t.Fatal(err)
		}
		edited, err := Edit(t.Context(), s, before, map[string]Values{"a-b": {URL: newURL, Checksum: digest}})
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case want == "" && (len(edited.Files) > 0 || edited.Refused["a-b"] == nil):
			t.Errorf("%s: %+v", sum, edited)
		case want != "" && (len(edited.Files) != 1 || string(edited.Files[0].Data) != want):
			t.Errorf("%s: %+v", sum, edited)
		}
	}
}

func TestWhatCannotBeEditedIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"shared.yaml":  "images:\n  golden: {source: {download: {url: OLDURL}}, checksum: &a OLDSUM}\n  other: {source: {upload: {}}, checksum: *a}\n",
		"alias.yaml":   "images:\n  other: {source: {upload: {}}, checksum: &a OLDSUM}\n  golden: {source: {download: {url: OLDURL}}, checksum: *a}\n",
		"merge.yaml":   "images:\n  other: &a {source: {download: {url: OLDURL}}, checksum: OLDSUM}\n  golden: {<<: *a}\n",
		"missing.yaml": "images:\n  golden: {source: {download: {url: OLDURL}}}\n",
		"escaped.yaml": "images:\n  golden: {source: {download: {url: \"\\x68ttps://example.com/a-1.raw\"}}, checksum: OLDSUM}\n",
		"folded.yaml":  "images:\n  golden:\n    source: {download: {url: \"https://example.com\\\n      /a-1.raw\"}}\n    checksum: OLDSUM\n",
		"escaped.json": `{"images": {"golden": {"source": {"download": {"url": "https:\/\/example.com/a-1.raw"}}, "checksum": "OLDSUM"}}}`,
		"comment.yaml": "images:\n  golden: # OLDURL\n    source: {download: {url: \"\\x68ttps://example.com/a-1.raw\"}} # OLDURL\n    checksum: OLDSUM\n",
		"a.cue":        "package a\n\n#base: \"https://example.com\"\nimages: golden: {\n\tsource: download: url: #base + \"/a-1.raw\"\n\tchecksum: \"OLDSUM\"\n}\n",
		"b.cue":        "package a\n\n#sum: \"OLDSUM\"\nimages: golden: {\n\tsource: download: url: \"OLDURL\"\n\tchecksum: #sum\n}\nimages: other: {\n\tsource: upload: {}\n\tchecksum: #sum\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, _, edited := editDir(t, map[string]string{name: text})
			refusal := edited.Refused["golden"]
			if refusal == nil || len(edited.Files) > 0 {
				t.Fatalf("%+v", edited)
			}
			if refusal.File != name || refusal.Line == 0 || !strings.Contains(refusal.Error(), `url: "`+newURL+`", checksum: "`+newSum) {
				t.Errorf("the refusal has no place or no lines to write: %v", refusal)
			}
		})
	}
}

func TestLinksOutOfTheDirectoryAreNotWritten(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b.yaml", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	before := configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte("x")}, {Path: "c.yaml", Data: []byte("x")}}}
	edited := []configdir.File{{Path: "a.yaml", Data: []byte("y")}, {Path: "c.yaml", Data: []byte("y")}}
	if err := Write(dir, before, edited[:1]); err == nil {
		t.Error("a file outside was written")
	}
	if err := Write(dir, before, edited[1:]); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "b.yaml")); err != nil || string(got) != "y" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := os.Readlink(filepath.Join(dir, "c.yaml")); err != nil {
		t.Error(err)
	}
}

// If one file cannot be written, no file changes.
func TestWriteAllFilesOrNone(t *testing.T) {
	dir := t.TempDir()
	var before configdir.Snapshot
	var edited []configdir.File
	for _, name := range []string{"a.yaml", "sub/b.yaml", "sub/c.yaml"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("old"), 0o600)); err != nil {
			t.Fatal(err)
		}
		before.Files = append(before.Files, configdir.File{Path: name, Data: []byte("old")})
		edited = append(edited, configdir.File{Path: name, Data: []byte("new")})
	}
	if err := os.WriteFile(filepath.Join(dir, "sub/c.yaml"), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Write(dir, before, edited)
	if err == nil || !strings.Contains(err.Error(), "write sub/c.yaml: it has changed since it was read") {
		t.Errorf("got %v", err)
	}
	for name, want := range map[string]string{"a.yaml": "old", "sub/b.yaml": "old", "sub/c.yaml": "changed"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*/.update-*")); err != nil || len(left) > 0 {
		t.Errorf("%v remain, %v", left, err)
	}
	if err := Write(dir, before, edited[:2]); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sub/b.yaml")); err != nil || string(got) != "new" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestWriteKeepsTheOwner(t *testing.T) {
	need.Root(t, "change the owner of a file")
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o640), os.Chown(file, 12345, 23456)); err != nil {
		t.Fatal(err)
	}
	before := configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte("old")}}}
	if err := Write(dir, before, []configdir.File{{Path: "a.yaml", Data: []byte("new")}}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 12345 || owner.Gid != 23456 || info.Mode().Perm() != 0o640 {
		t.Errorf("the owner is %d:%d, the mode %v", owner.Uid, owner.Gid, info.Mode())
	}
}

// A value that stays is not in the message: its query may be a secret.
func TestRefusalHasNoSecret(t *testing.T) {
	dir := t.TempDir()
	text := "images:\n  golden: {source: {download: {url: 'https://example.com/a?token=secret'}}, checksum: &a " + oldSum + "}\n  other: {source: {upload: {}}, checksum: *a}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := configdir.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := ident.ParseDigest(newSum)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := Edit(t.Context(), s, load.NewLoader().Load(t.Context(), s), map[string]Values{"golden": {URL: "https://example.com/a?token=secret", Checksum: sum}})
	if err != nil {
		t.Fatal(err)
	}
	if refusal := edited.Refused["golden"]; refusal == nil || strings.Contains(refusal.Error(), "secret") || !strings.Contains(refusal.Error(), newSum) {
		t.Errorf("got %v", refusal)
	}
}
