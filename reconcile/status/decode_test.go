package status

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
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
		Disks: map[ident.DiskRef]model.Disk{ref: {
			Path: "/disk1", UUID: "u1", Space: model.Space{Total: 2, Free: 1}, ReadOnly: true, Disputed: "a clone", UsageUnknown: "unreadable", ClockStepped: true, ProblemSince: at(-1), Unmanaged: []string{"x"},
			Needs: map[ident.ID]model.Need{{Name: "parrot", UUID: "0000000b"}: {By: "replica vol-1", Since: at(-6), OtherWriter: at(-7)}},
			Copies: map[ident.ID]model.Copy{id: {
				ID: id, State: model.Failed, Message: "damaged", Size: 1, VirtualSize: 2, RealSize: 3, Format: model.Raw,
				SHA512: testDigest(ident.SHA512, "a"), SHA256: testDigest(ident.SHA256, "a"), ManifestDigest: testDigest(ident.SHA256, "b"),
				Signature:  model.Signature{Scheme: "openpgp", Signer: "0123ABCD", Time: at(-8), Warning: "key-expired-since"},
				VerifiedAt: at(-1), ReadBackAt: at(-9), DamagedAt: at(-2), HasCfg: true, HasIndex: true, Owned: true, PartBytes: 4, PartTotal: 5, PartKind: model.PartFromUpload,
				Usage: model.Usage{
					InUseRecorded: true, ClockNode: "node1", LastUsed: at(-3), SurplusSince: at(-4), ReplacedAt: at(-5),
					Declaration: model.Declaration{File: "images.yaml", Kind: "StorageClass", Name: "fast", ConfigMap: "images"},
				},
				UsedBy: "volume", Leaving: true, SameAs: ident.DiskRef{Node: "node1", Disk: "disk2"}, Rejection: "full", RejectionTemporary: true, Unproven: true, Reason: model.Reason{Code: plan.CodeNoSpace, Text: "full"},
			}},
		}},
		Peers: map[string]model.Peer{"node2": {Queried: true, Problem: "no answer", UnreachableSince: at(-1), ConfigDigest: "d2", OtherConfigSince: at(-60), LastResponse: at(-5), Outdated: true, Omitted: 7}},
		Failures: map[ident.CopyRef]model.Failure{key: {
			Op: model.Repair, Attempts: 2, Since: at(-6), RetryAt: at(6), Message: "it failed", Final: true, NeedsSpace: 6, Fault: model.FaultDisk,
			Unrepairable: true, Suspects: []ident.CopyRef{key},
		}},
		Awaited: map[ident.CopyRef]time.Duration{key: time.Minute},
		Running: map[ident.CopyRef]bool{key: true}, Jobs: map[ident.CopyRef]plan.Job{key: plan.NewJob(model.Sync, key)}, BeingRead: map[ident.CopyRef]bool{key: true}, CannotPrepare: map[ident.ID]string{id: "no replica"}, BackedUp: map[ident.ID]bool{id: true},
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
			if v.Field(i).IsZero() && !slices.ContainsFunc([]string{"Disks.Problem", "Copies.CfgExpected", "Copies.BackupID", "Copies.Folder", "Folder.Device", "Folder.Inode", "Copies.Need", "Copies.Job", "Copies.Failure", "Copies.Mark", "Observed.unconfirmed", "Observed.ReadManifests", "Observed.Unanswered", "Observed.proofs"}, func(s string) bool { return strings.HasSuffix(field, s) }) {
				t.Errorf("%s is not set in this test", field)
			}
			checkAllSet(t, v.Field(i), field)
		}
	}
}

func TestIncompleteStatusIsRejected(t *testing.T) {
	const head = `"version": 1, "node": "node1", "time": "2026-12-01T12:00:00Z"`
	const disk1 = `"disks": [{"node": "node1", "name": "disk1", "observed": true}]`
	withCopy := func(one string) string {
		return `{` + head + `, ` + disk1 + `, "images": [{"name": "parrot", "uuid": "0000000a", "copies": [` + one + `]}]}`
	}
	for _, tt := range []struct{ name, text, want string }{
		{"a plan", `{"actions": []}`, "it lacks one of the fields"},
		{"another version", `{"version": 2, "node": "node1", "time": "2026-12-01T12:00:00Z", "disks": [], "images": []}`, "it has version 2 of the format, and this program has version 1"},
		{"no disks", `{` + head + `, "images": []}`, "it lacks one of the fields"},
		{"a disk twice", `{` + head + `, "images": [], "disks": [{"node": "n", "name": "d", "observed": true}, {"node": "n", "name": "d"}]}`, "disk n/d occurs twice"},
		{"no disk", withCopy(`{"node": "node1", "disk": "disk2", "observed": {"state": "ready"}}`), "copy node1/disk2/parrot-0000000a: its disk is missing or was not observed"},
		{"no state", withCopy(`{"node": "node1", "disk": "disk1", "observed": {"state": "redy"}}`), `unknown state "redy"`},
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
