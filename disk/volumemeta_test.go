package disk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// realMetas returns the volume.meta files that Longhorn wrote, by case.
func realMetas(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/volume-meta/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	metas := map[string][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		metas[strings.TrimSuffix(filepath.Base(file), ".json")] = data
	}
	return metas
}

func TestRealVolumeMetas(t *testing.T) {
	want := map[string]struct {
		image             string
		dirty, rebuilding bool
		bad               bool
	}{
		"backing":               {image: "quince-base-87e3c988"},
		"backingodd":            {image: "rowan.img-13562ea9"},
		"backingqcow2":          {image: "spruce-q-2143f318"},
		"single":                {},
		"expanded":              {},
		"dirty":                 {dirty: true},
		"pair-0":                {},
		"pair-1":                {dirty: true, rebuilding: true},
		"bad-empty-volume-meta": {bad: true},
	}
	for name, data := range realMetas(t) {
		want, ok := want[name]
		if !ok {
			t.Errorf("%s is not expected", name)
		}
		m, err := ParseVolumeMeta(data)
		if want.bad != (err != nil) {
			t.Errorf("%s: error %v", name, err)
		}
		image, err := m.Image()
		if image != want.image || err != nil || m.Dirty != want.dirty || m.Rebuilding != want.rebuilding {
			t.Errorf("%s: image %q of %+v, error %v; want %+v", name, image, m, err, want)
		}
	}
}

// TestEveryReplicaCounts has an image that a replica uses, in whatever state that
// is. It is never deleted, nor is any other as long as one replica cannot be read.
func TestEveryReplicaCounts(t *testing.T) {
	t.Parallel()
	meta := func(more string) string {
		return `{"Size":1048576,"Head":"volume-head-000.img",` + more +
			`"BackingFilePath":"/host/var/lib/longhorn/backing-images/` + testID.String() + `/backing"}`
	}
	for _, test := range []struct {
		name, text string
		others     bool // are used too, as far as can be told
	}{
		{"plain", meta(""), false},
		{"dirty", meta(`"Dirty":true,`), false},
		{"rebuilding", meta(`"Rebuilding":true,`), false},
		{"with an error", meta(`"Error":"replica is broken",`), false},
		{"with other keys", meta(`"Color":{"a":[]},`), false},
		{"with keys of another case", strings.ReplaceAll(meta(""), "BackingFilePath", "backingfilepath"), false},
		{"with a newline", meta("") + "\n", false},
		{"empty", "", true},
		{"torn", meta("")[:60], true},
		{"cut before its last byte", meta("")[:len(meta(""))-1], true},
		{"zeros", strings.Repeat("\x00", 244), true},
		{"null", "null", true},
		{"without a size", `{"BackingFilePath":""}`, true},
		{"with a path that is a number", `{"Size":1,"BackingFilePath":7}`, true},
		{"with something behind it", meta("") + "x", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, sparseImage(ChunkSize))
			dir := filepath.Join(d.Path(), replicaFolder, "vol-12345678")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "volume.meta"), []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.Remove(testID); !isA[*InUseError](err) {
				t.Errorf("error is %v, want that it is in use", err)
			}
			if c := d.Look(testID); c.State != Ready {
				t.Errorf("copy is %+v", c)
			}
			if why := d.Users().Using(ID{"willow", "00000224"}); (why != "") != test.others {
				t.Errorf("of another image: %q", why)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := d.Remove(testID); err != nil {
				t.Errorf("when the replica is gone: %v", err)
			}
		})
	}
}

// FuzzParseVolumeMeta holds for any bytes: no panic, and a volume that lies on a file
// lies on one image, or on all as far as can be told.
func FuzzParseVolumeMeta(f *testing.F) {
	for _, data := range realMetas(f) {
		f.Add(data)
	}
	f.Add([]byte(`{"Size":1,"BackingFilePath":"/a/backing-images/b/backing-images/parrot-6846a0b2/../x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseVolumeMeta(data)
		if err != nil {
			return
		}
		if m.Size <= 0 {
			t.Errorf("size %d", m.Size)
		}
		image, err := m.Image()
		if (image != "" || err != nil) != (m.BackingFilePath != "") || strings.Contains(image, "/") {
			t.Errorf("%q lies on %q, error %v", m.BackingFilePath, image, err)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseVolumeMeta(text); err != nil || again != m {
			t.Errorf("%+v was written as %s, which reads as %+v, error %v", m, text, again, err)
		}
	})
}
