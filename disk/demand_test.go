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

// expectedDemand is what a volume.meta in testdata/demand names.
type expectedDemand struct {
	Image      string `json:"image"`
	UUID       string `json:"uuid"`
	Unreadable bool   `json:"unreadable"`
}

func expectedDemands(t *testing.T) map[string]expectedDemand {
	data, err := os.ReadFile("testdata/demand/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	expected := map[string]expectedDemand{}
	if err := json.Unmarshal(data, &expected); err != nil {
		t.Fatal(err)
	}
	return expected
}

// copyReplica copies a replica of testdata/demand to a disk.
func copyReplica(t *testing.T, d *Disk, name string) {
	if err := os.CopyFS(filepath.Join(d.Path(), replicaFolder, name), os.DirFS("testdata/demand/"+name)); err != nil {
		t.Fatal(err)
	}
}

func TestDemands(t *testing.T) {
	expected := expectedDemands(t)
	folders, err := filepath.Glob("testdata/demand/*/volume.meta")
	if err != nil || len(folders) != len(expected) || len(folders) == 0 {
		t.Fatalf("%d replicas, and %d are expected: %v", len(folders), len(expected), err)
	}
	for name, want := range expected {
		d := newDisk(t)
		copyReplica(t, d, name)
		before := time.Now()
		u := d.Users()
		demands := u.Demands()
		if (u.Err() != nil) != want.Unreadable {
			t.Errorf("%s: error %v, want one: %v", name, u.Err(), want.Unreadable)
		}
		id := ident.ID{Name: want.Image, UUID: want.UUID}
		if _, err := ident.ParseID(id.String()); err != nil {
			if len(demands) > 0 {
				t.Errorf("%s: demands %v, want none", name, demands)
			}
			continue
		}
		got := demands[id]
		if len(demands) != 1 || !slices.Equal(got.Replicas, []string{name}) || got.Since.After(before) || before.Sub(got.Since) > time.Minute || !got.OtherWriter.IsZero() {
			t.Errorf("%s: demands %v, want one for %s since now", name, demands, id)
		}
	}
}

// TestDemandsOfManyReplicas checks that a torn volume.meta does not hide the demands of other replicas, and
// that all replicas of an image are in one demand, since the earliest of them.
func TestDemandsOfManyReplicas(t *testing.T) {
	d := newDisk(t)
	copyReplica(t, d, "ready-1a2b3c4d")
	first := d.Users().Demands()
	for name := range expectedDemands(t) {
		if name != "ready-1a2b3c4d" {
			copyReplica(t, d, name)
		}
	}
	u := d.Users()
	id := ident.ID{Name: "vmi-2827688d-e6a1-4a3b-8d46-4138a6233255", UUID: "1cfb10f6"}
	other, undeclared := ident.ID{Name: id.Name, UUID: "00000000"}, ident.ID{Name: "nobody", UUID: "0badcafe"}
	got := u.Demands()
	if ids := slices.Collect(maps.Keys(got)); u.Err() == nil || len(ids) != 3 || got[other].Replicas == nil || got[undeclared].Replicas == nil {
		t.Errorf("demands of %v, error %v", ids, u.Err())
	}
	want := []string{"dirty-8a2b3c4d", "double-3a2b3c4d", "error-9a2b3c4d", "folder-4a2b3c4d", "nested-aa2b3c4d", "nohost-2a2b3c4d", "ready-1a2b3c4d"}
	if one := got[id]; !slices.Equal(one.Replicas, want) || !one.Since.Equal(first[id].Since) {
		t.Errorf("the demand is %v, want of %v since %s", one, want, first[id].Since)
	}
}

// TestDemandEnds checks that a demand ends with the last replica, and not with a file, which may be wrong, nor while a
// removal has set the folder aside.
func TestDemandEnds(t *testing.T) {
	d := newDisk(t)
	replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
	demands := func() int { return len(d.Users().Demands()) }
	if n := demands(); n != 1 {
		t.Fatalf("%d demands, want 1", n)
	}
	if err := os.MkdirAll(imagePath(d, ""), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, partFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := demands(); n != 1 {
		t.Errorf("%d demands with a partial file, want 1", n)
	}
	if err := os.WriteFile(imagePath(d, imageFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := demands(); n != 1 {
		t.Errorf("%d demands with a file, want 1", n)
	}
	aside := filepath.Join(filepath.Dir(imagePath(d, "")), removingPrefix+testID.String())
	if err := os.Rename(imagePath(d, ""), aside); err != nil {
		t.Fatal(err)
	}
	d.removals.RLock()
	if n := demands(); n != 0 {
		t.Errorf("%d demands during a removal, want 0", n)
	}
	d.removals.RUnlock()
	if n := demands(); n != 1 {
		t.Errorf("%d demands after a removal that a crash interrupted, want 1", n)
	}
	if err := os.Rename(aside, imagePath(d, "")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(imagePath(d, imageFile)); err != nil {
		t.Fatal(err)
	}
	if n := demands(); n != 1 {
		t.Errorf("%d demands after the loss of the file, want 1", n)
	}
	if err := os.RemoveAll(filepath.Join(d.Path(), replicaFolder, "vol-1")); err != nil {
		t.Fatal(err)
	}
	if n := demands(); n != 0 {
		t.Errorf("%d demands without a replica, want 0", n)
	}
}

// TestDemandWithOtherWriter checks that the temporary files of Longhorn's manager are found, and only those
// of the image.
func TestDemandWithOtherWriter(t *testing.T) {
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
		if last := d.Users().Demands()[testID].OtherWriter; last.Equal(at) != found {
			t.Errorf("%s: the other writer wrote at %s", name, last)
		}
	}
}
