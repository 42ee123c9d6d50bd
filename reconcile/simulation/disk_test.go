package simulation

import (
	"errors"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

var parrot = ident.ID{Name: "parrot", UUID: "0000000a"}

// newTestDisk returns an attached disk of 8 GiB. Open fails while it is not attached.
func newTestDisk() *Disk { return NewDisk("disk-0001", NewLibrary(), 8*gib) }

func TestFillMakesACopyReadyAndTakesSpace(t *testing.T) {
	t.Parallel()
	d := newTestDisk()
	want := d.Library.Properties("a").SHA512
	if err := d.Fill(parrot, "a", want, 0, startTime); err != nil {
		t.Fatal(err)
	}
	if c := d.Copy(parrot); c.State != model.Ready || c.SHA512 != want || !c.VerifiedAt.Equal(startTime) || d.Free() != 7*gib {
		t.Errorf("the copy is %+v, and %d bytes are free", c, d.Free())
	}
	if err := d.Fill(parrot, "b", ident.Digest{}, 0, startTime); err == nil || d.Copies[parrot].File != "a" {
		t.Errorf("a ready copy is replaced, error %v", err)
	}
}

func TestFillFailsWithoutAFile(t *testing.T) {
	t.Parallel()
	d := newTestDisk()
	if err := d.Fill(parrot, "a", d.Library.Properties("b").SHA512, 0, startTime); !isA[*disk.ChecksumError](err) {
		t.Errorf("for the wrong digest the error is %v", err)
	}
	if err := d.Fill(parrot, "a", ident.Digest{}, 8*gib, startTime); !isA[*disk.NoSpaceError](err) {
		t.Errorf("below the reserve the error is %v", err)
	}
	if c := d.Copy(parrot); c.State != model.Pending || d.Free() != 8*gib {
		t.Errorf("the copy is %+v, and %d bytes are free", c, d.Free())
	}
}

func TestVerifyFindsDamageAndRepairRemovesIt(t *testing.T) {
	t.Parallel()
	d := newTestDisk()
	d.Copies[parrot] = &Copy{File: "a"} // of Longhorn
	if state := d.Copy(parrot).State; state != model.Unknown {
		t.Errorf("an unmanaged file is %s", state)
	}
	for _, step := range []struct {
		name string
		do   func() error
		want model.State
	}{
		{"adoption", func() error { return d.Verify(parrot, startTime) }, model.Ready},
		{"damage", func() error { d.Copies[parrot].File = "b"; return nil }, model.Ready},
		{"verification", func() error { return d.Verify(parrot, startTime) }, model.Failed},
		{"repair", func() error { return d.Repair(parrot, "a", startTime) }, model.Ready},
	} {
		if err := step.do(); err != nil || d.Copy(parrot).State != step.want {
			t.Errorf("after the %s the copy is %s, error %v; want %s", step.name, d.Copy(parrot).State, err, step.want)
		}
	}
}

func TestRemovalKeepsACopyInUse(t *testing.T) {
	t.Parallel()
	d := newTestDisk()
	d.Copies[parrot] = &Copy{File: "a", Recorded: "a", Owned: true, Users: 1}
	if err := disk.RemoveUnused(d.Removal(parrot, "")); !isA[*disk.InUseError](err) || d.Copies[parrot].Aside {
		t.Errorf("the error is %v", err)
	}
	d.Copies[parrot].Users = 0
	d.UsersUnknown = true
	if err := disk.RemoveUnused(d.Removal(parrot, "")); !isA[*disk.InUseError](err) {
		t.Errorf("with unknown users the error is %v", err)
	}
	d.UsersUnknown = false
	if err := disk.RemoveUnused(d.Removal(parrot, "")); err != nil || len(d.Copies) != 0 {
		t.Errorf("%d copies remain, error %v", len(d.Copies), err)
	}
}

func TestOpenDiskFailsWhenItIsDetached(t *testing.T) {
	t.Parallel()
	d := newTestDisk()
	open, uuid, err := Open(func() *Disk { return d })
	if err != nil || uuid != d.UUID || open.Check() != nil {
		t.Fatalf("the uuid is %s, error %v", uuid, err)
	}
	d.Attached = false
	_, listErr := open.List("")
	if updateErr := open.Update(parrot, func(*disk.Record) {}); open.Check() == nil || listErr == nil || updateErr == nil {
		t.Errorf("errors %v, %v", listErr, updateErr)
	}
	if _, _, err := Open(func() *Disk { return d }); !errors.Is(err, disk.ErrNotInitialised) {
		t.Errorf("the error of Open is %v", err)
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
