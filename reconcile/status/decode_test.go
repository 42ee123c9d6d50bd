package status

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// encodeAndDecode returns s after it was written as JSON and read again.
func encodeAndDecode(s Status) (decoded Status) {
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &decoded)
	}
	if err != nil {
		panic(err)
	}
	return decoded
}

// TestStatusKeepsEveryField sets every field of an observed state, so that none is lost in a
// saved status.
func TestStatusKeepsEveryField(t *testing.T) {
	ref := ident.DiskRef{Node: "node1", Disk: "disk1"}
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	key := ident.CopyRef{Disk: ref, ID: id}
	at := func(minutes int) time.Time { return testNow.Add(time.Duration(minutes) * time.Minute) }
	o := plan.Observed{
		Now: testNow,
		Disks: map[ident.DiskRef]plan.Disk{ref: {
			Path: "/disk1", UUID: "u1", Space: disk.Space{Total: 2, Free: 1}, ReadOnly: true, Disputed: "a clone", UsageUnknown: "unreadable", ClockStepped: true, ProblemFor: time.Minute, Unmanaged: []string{"x"},
			Demands: map[ident.ID]plan.Demand{{Name: "parrot", UUID: "0000000b"}: {By: "replica vol-1", Since: at(-6), OtherWriter: at(-7)}},
			Copies: map[ident.ID]plan.Copy{id: {
				Copy: disk.Copy{
					ID: id, State: disk.Failed, Message: "damaged", Size: 1, VirtualSize: 2, RealSize: 3, Format: disk.Raw,
					SHA512: testDigest(ident.SHA512, "a"), SHA256: testDigest(ident.SHA256, "a"), ManifestDigest: testDigest(ident.SHA256, "b"),
					Signature:  disk.Signature{Scheme: "openpgp", Signer: "0123ABCD", Time: at(-8), Warning: "key-expired-since"},
					VerifiedAt: at(-1), ReadBackAt: at(-9), DamagedAt: at(-2), HasCfg: true, HasIndex: true, Owned: true, PartBytes: 4, PartTotal: 5, PartSourceID: "f",
					InUseRecorded: true, ClockNode: "node1", LastUsed: at(-3), SurplusSince: at(-4), ReplacedAt: at(-5),
					Declaration: disk.Declaration{File: "images.yaml", Kind: "StorageClass", Name: "fast", ConfigMap: "images"},
				},
				UsedBy: "volume", Leaving: true, Rejects: "full", RejectsForNow: true, Unproven: true, Published: plan.Reason{Code: plan.CodeNoSpace, Text: "full"},
			}},
		}},
		Peers: map[string]plan.Peer{"node2": {Queried: true, Problem: "no answer", UnreachableFor: time.Minute + 1, ConfigDigest: "d2", OtherConfigFor: time.Hour, LastResponse: at(-5), Outdated: true, Omitted: 7}},
		Failures: map[ident.CopyRef]plan.Failure{key: {
			Op: plan.Repair, Attempts: 2, Since: at(-6), RetryAt: at(6), Message: "it failed", Final: true, NeedsSpace: 6, Fault: plan.FaultDisk,
			Unrepairable: true, Suspects: []ident.CopyRef{key},
		}},
		Awaited: map[ident.CopyRef]time.Duration{key: time.Minute},
		Running: map[ident.CopyRef]bool{key: true}, Jobs: map[ident.CopyRef]plan.Job{key: plan.NewJob(plan.Sync, key)}, BeingRead: map[ident.CopyRef]bool{key: true}, CannotPrepare: map[ident.ID]string{id: "no replica"}, BackedUp: map[ident.ID]bool{id: true},
	}
	checkAllSet(t, reflect.ValueOf(o), "Observed")
	got, err := encodeAndDecode((&View{Desired: plan.Desired{Node: "node1"}, Observed: o}).Status(nil)).observed()
	if err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("error %v; observed was\n%+v\nfrom the status\n%+v", err, o, got)
	}
}

// checkAllSet fails the test if a field of v is zero, so that this test cannot miss a new field.
// Exceptions are fields that are derived from others, and fields that are set only while a file
// is inspected, or a deletion is prepared or confirmed.
func checkAllSet(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Map:
		for _, k := range v.MapKeys() {
			checkAllSet(t, v.MapIndex(k), name)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() || v.Type() == reflect.TypeFor[ident.Digest]() {
			return
		}
		for i := range v.NumField() {
			field := name + "." + v.Type().Field(i).Name
			if strings.HasPrefix(field, "Observed.Jobs.") {
				continue // a status has the operation of a job only
			}
			if v.Field(i).IsZero() && !slices.ContainsFunc([]string{"Disks.Problem", "Copy.CfgExpected", "Copy.BackupID", "Copy.Folder", "Folder.Device", "Folder.Inode", "Copies.SameAs", "SameAs.Node", "SameAs.Disk", "Peers.unconfirmed", "Observed.ReadManifests", "Observed.Unanswered", "Observed.proofs"}, func(s string) bool { return strings.HasSuffix(field, s) }) {
				t.Errorf("%s is not set in this test", field)
			}
			checkAllSet(t, v.Field(i), field)
		}
	}
}

func TestIncompleteStatusIsRejected(t *testing.T) {
	const head = `"node": "node1", "time": "2026-12-01T12:00:00Z"`
	const disk1 = `"disks": [{"node": "node1", "disk": "disk1", "seen": true}]`
	withCopy := func(one string) string {
		return `{` + head + `, ` + disk1 + `, "images": [{"name": "parrot", "uuid": "0000000a", "copies": [` + one + `]}]}`
	}
	for _, tt := range []struct{ name, text, want string }{
		{"a plan", `{"actions": []}`, "it lacks one of the fields"},
		{"no disks", `{` + head + `, "images": []}`, "it lacks one of the fields"},
		{"a disk twice", `{` + head + `, "images": [], "disks": [{"node": "n", "disk": "d", "seen": true}, {"node": "n", "disk": "d"}]}`, "disk n/d occurs twice"},
		{"no disk", withCopy(`{"node": "node1", "disk": "disk2", "found": {"state": "ready"}}`), "copy node1/disk2/parrot-0000000a: its disk is missing or was not observed"},
		{"no state", withCopy(`{"node": "node1", "disk": "disk1", "found": {"state": "redy"}}`), `unknown state "redy"`},
		{"suspect", withCopy(`{"node": "node1", "disk": "disk1", "try": {"suspects": ["x"]}}`), `"x" is not NODE/DISK/FOLDER`},
	} {
		var s Status
		if err := json.Unmarshal([]byte(tt.text), &s); err != nil {
			t.Fatal(tt.name, err)
		}
		if _, err := s.observed(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the error is %v, want %q", tt.name, err, tt.want)
		}
	}
}
