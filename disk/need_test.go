package disk

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// expectedNeed is what a volume.meta in testdata/need names.
type expectedNeed struct {
	Image      string `json:"image"`
	UUID       string `json:"uuid"`
	Unreadable bool   `json:"unreadable"`
}

func expectedNeeds(t *testing.T) map[string]expectedNeed {
	data, err := os.ReadFile("testdata/need/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	expected := map[string]expectedNeed{}
	if err := json.Unmarshal(data, &expected); err != nil {
		t.Fatal(err)
	}
	return expected
}

// copyReplica copies a replica of testdata/need to a disk.
func copyReplica(t *testing.T, d *Disk, name string) {
	if err := os.CopyFS(filepath.Join(d.Path(), replicaFolder, name), os.DirFS("testdata/need/"+name)); err != nil {
		t.Fatal(err)
	}
}

func TestNeeds(t *testing.T) {
	expected := expectedNeeds(t)
	folders, err := filepath.Glob("testdata/need/*/volume.meta")
	if err != nil || len(folders) != len(expected) || len(folders) == 0 {
		t.Fatalf("%d replicas, and %d are expected: %v", len(folders), len(expected), err)
	}
	for name, want := range expected {
		d := newDisk(t)
		copyReplica(t, d, name)
		before := time.Now()
		u := d.Users()
		needs := u.Needs()
		if (u.Err() != nil) != want.Unreadable {
			t.Errorf("%s: error %v, want one: %v", name, u.Err(), want.Unreadable)
		}
		id := ident.ID{Name: want.Image, UUID: want.UUID}
		if _, err := ident.ParseID(id.String()); err != nil {
			if len(needs) > 0 {
				t.Errorf("%s: needs %v, want none", name, needs)
			}
			continue
		}
		got := needs[id]
		if len(needs) != 1 || !slices.Equal(got.Replicas, []string{name}) || got.Since.After(before) || before.Sub(got.Since) > time.Minute || !got.OtherWriter.IsZero() {
			t.Errorf("%s: needs %v, want one for %s since now", name, needs, id)
		}
	}
}

// TestNeedsOfManyReplicas checks that a torn volume.meta does not hide the needs of other replicas, and
// that all replicas of an image are in one need, since the earliest of them.
func TestNeedsOfManyReplicas(t *testing.T) {
	d := newDisk(t)
	copyReplica(t, d, "ready-1a2b3c4d")
	first := d.Users().Needs()
	for name := range expectedNeeds(t) {
		if name != "ready-1a2b3c4d" {
			copyReplica(t, d, name)
		}
	}
	u := d.Users()
	id := ident.ID{Name: "vmi-2827688d-e6a1-4a3b-8d46-4138a6233255", UUID: "1cfb10f6"}
	other, undeclared := ident.ID{Name: id.Name, UUID: "00000000"}, ident.ID{Name: "nobody", UUID: "0badcafe"}
	got := u.Needs()
	if ids := slices.Collect(maps.Keys(got)); u.Err() == nil || len(ids) != 3 || got[other].Replicas == nil || got[undeclared].Replicas == nil {
		t.Errorf("needs of %v, error %v", ids, u.Err())
	}
	want := []string{"dirty-8a2b3c4d", "double-3a2b3c4d", "error-9a2b3c4d", "folder-4a2b3c4d", "nested-aa2b3c4d", "nohost-2a2b3c4d", "ready-1a2b3c4d"}
	if one := got[id]; !slices.Equal(one.Replicas, want) || !one.Since.Equal(first[id].Since) {
		t.Errorf("the need is %v, want of %v since %s", one, want, first[id].Since)
	}
}

// TestNeedEnds checks that a need ends with the last replica, and not with a file, which may be wrong, nor while a
// removal has set the folder aside.
func TestNeedEnds(t *testing.T) {
	d := newDisk(t)
	replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
	needs := func() int { return len(d.Users().Needs()) }
	if n := needs(); n != 1 {
		t.Fatalf("%d needs, want 1", n)
	}
	if err := os.MkdirAll(imagePath(d, ""), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, partFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := needs(); n != 1 {
		t.Errorf("%d needs with a partial file, want 1", n)
	}
	if err := os.WriteFile(imagePath(d, imageFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := needs(); n != 1 {
		t.Errorf("%d needs with a file, want 1", n)
	}
	aside := filepath.Join(filepath.Dir(imagePath(d, "")), removingPrefix+testID.String())
	if err := os.Rename(imagePath(d, ""), aside); err != nil {
		t.Fatal(err)
	}
	d.removals.RLock()
	if n := needs(); n != 0 {
		t.Errorf("%d needs during a removal, want 0", n)
	}
	d.removals.RUnlock()
	if n := needs(); n != 1 {
		t.Errorf("%d needs after a removal that a crash interrupted, want 1", n)
	}
	if err := os.Rename(aside, imagePath(d, "")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(imagePath(d, imageFile)); err != nil {
		t.Fatal(err)
	}
	if n := needs(); n != 1 {
		t.Errorf("%d needs after the loss of the file, want 1", n)
	}
	if err := os.RemoveAll(filepath.Join(d.Path(), replicaFolder, "vol-1")); err != nil {
		t.Fatal(err)
	}
	if n := needs(); n != 0 {
		t.Errorf("%d needs without a replica, want 0", n)
	}
}

// TestNeedWithOtherWriter checks that the temporary files of Longhorn's manager are found, and only those
// of the image.
func TestNeedWithOtherWriter(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for name, found := range map[string]bool{
		"backing-images/" + testID.String() + "/backing.tmp":  true,
		"tmp/" + testID.String() + ".tmp":                     true,
		"tmp/" + testID.String():                              true,
		"tmp/other-12345678.tmp":                              false,
		"backing-images/" + testID.String() + "/backing.part": false,
	} {
		d := newDisk(t)
		replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
		file := filepath.Join(d.Path(), name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		if last := d.Users().Needs()[testID].OtherWriter; last.Equal(at) != found {
			t.Errorf("%s: the other writer wrote at %s", name, last)
		}
	}
}
