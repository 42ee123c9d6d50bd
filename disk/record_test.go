package disk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// wholeRecord returns a record with every field set.
func wholeRecord() Record {
	at := time.Date(2026, 11, 20, 9, 0, 0, 5, time.UTC)
	return Record{
		Owner: recordOwner, Version: recordVersion, Created: at, Format: model.QCOW2, VirtualSize: 10,
		Source: &PartSource{ID: "abc", ETag: `W/"x"`, LastModified: "Fri, 20 Nov 2026 09:00:00 GMT", Size: 7},
		SHA512: digest512(nil), SHA256: digest256(nil), ManifestDigest: digest256(nil), Size: 7, IndexDigest: digest256(nil),
		Signature:  model.Signature{Scheme: "openpgp", Signer: "0123ABCD", Time: at, Warning: "key-expired-since"},
		Evidence:   &Evidence{Size: 7, ModTime: at.UnixNano(), ChangeTime: at.UnixNano() + 1, Inode: 1 << 63},
		VerifiedAt: at, ReadBackAt: at, DamagedAt: at, Failed: "damaged",
		BackupID: "0a", Usage: model.Usage{
			InUseRecorded: true, LastUsed: at, SurplusSince: at, ReplacedAt: at, ClockNode: "node1",
			Declaration: model.Declaration{File: "a.yaml", Kind: "BackingImage", Name: "parrot", ConfigMap: "fleet"},
		},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	want := wholeRecord()
	for v, i := reflect.ValueOf(want), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("wholeRecord does not set %s", v.Type().Field(i).Name)
		}
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseRecord(data); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v (error %v)", got, want, err)
	}
}

func TestParseRecord(t *testing.T) {
	sum512, sum256 := digest512(nil).String(), digest256(nil).String()
	for _, test := range []struct {
		name, text string
		good       bool
	}{
		{"no version", `{"owner":"backing-image-manager"}`, false},
		{"another version", `{"owner":"backing-image-manager","version":2}`, false},
		{"only an owner and the version", `{"owner":"backing-image-manager","version":1}`, true},
		{"digests", `{"owner":"backing-image-manager","version":1,"sha512":"` + sum512 + `","sha256":"` + sum256 + `"}`, true},
		{"a signature with a name that a terminal would obey", `{"owner":"backing-image-manager","version":1,"signature":{"scheme":"x","signer":"\u001b[31m"}}`, true},
		{"unknown keys", `{"owner":"backing-image-manager","version":1,"new":[{}]}`, true},
		{"no bytes", ``, false},
		{"torn", `{"owner":"backing-image-ma`, false},
		{"zeros", strings.Repeat("\x00", 100), false},
		{"null", `null`, false},
		{"an empty object", `{}`, false},
		{"another owner", `{"owner":"somebody"}`, false},
		{"a digest that is short", `{"owner":"backing-image-manager","version":1,"sha512":"abcd"}`, false},
		{"a SHA-256 in sha512", `{"owner":"backing-image-manager","version":1,"sha512":"` + sum256 + `"}`, false},
		{"a SHA-512 in sha256", `{"owner":"backing-image-manager","version":1,"sha256":"` + sum512 + `"}`, false},
		{"a SHA-512 in manifestDigest", `{"owner":"backing-image-manager","version":1,"manifestDigest":"` + sum512 + `"}`, false},
		{"a time that is not valid", `{"owner":"backing-image-manager","version":1,"lastUsed":"yesterday"}`, false},
		{"a wrong type", `{"owner":"backing-image-manager","version":1,"evidence":7}`, false},
		{"two records", `{"owner":"backing-image-manager","version":1}{"owner":"backing-image-manager","version":1}`, false},
	} {
		if _, err := ParseRecord([]byte(test.text)); (err == nil) != test.good {
			t.Errorf("%s: error %v", test.name, err)
		}
	}
}

// TestRecordOfAnotherVersion checks that nothing is done to a copy whose record has another version of the format, and that
// every operation says why.
func TestRecordOfAnotherVersion(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	path := filepath.Join(d.path, filePath(testID, recordFile))
	record := []byte(`{"owner":"backing-image-manager","version":2,"sha512":{"of":"another form"}}`)
	if err := os.WriteFile(path, record, 0o600); err != nil {
		t.Fatal(err)
	}
	const reason = "has version 2 of the format, and this program has version 1: run the release of backing-image-manager that wrote it, or remove the file"
	if c := d.Stat(testID); c.State != model.Unknown || c.Owned || !strings.Contains(c.Message, recordFile+": it "+reason) {
		t.Errorf("the copy is %+v", c)
	}
	before := tree(t, d.path)
	_, verified := d.Verify(t.Context(), testID, Expected{}, func(int64) { t.Error("Verify read the image") })
	_, opened := d.OpenPart(t.Context(), testID, PartOptions{})
	for name, err := range map[string]error{
		"verify": verified, "open a partial file": opened, "remove": d.Remove(testID, Mark{}),
		"update":            d.Update(testID, func(*Record) { t.Error("Update read the record") }),
		"write backing.cfg": d.WriteCfg(testID, ident.Digest{}),
	} {
		if err == nil || !strings.Contains(err.Error(), path+": it "+reason) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if after := tree(t, d.path); !slices.Equal(before, after) {
		t.Errorf("the disk has %v, and had %v", after, before)
	}
}

// TestRecordWithoutDigestIsNotReady checks that a copy is not ready if its record has valid evidence
// but no digest.
func TestRecordWithoutDigestIsNotReady(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := d.Update(testID, func(r *Record) { r.SHA512 = ident.Digest{} }); err != nil {
		t.Fatal(err)
	}
	if c := d.Stat(testID); c.State != model.Unknown {
		t.Errorf("copy is %+v", c)
	}
}

// FuzzParseRecord checks for any bytes that ParseRecord does not panic, that the owner is this
// program, that each digest has its algorithm, and that a parsed record survives a round trip.
func FuzzParseRecord(f *testing.F) {
	d := newDisk(f)
	readyImage(f, d, sparseImage(ChunkSize))
	r, _, err := d.image(testID).readRecord()
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range []Record{r, wholeRecord(), {Owner: recordOwner}} {
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecord(data)
		if err != nil {
			return
		}
		if r.Owner != recordOwner || r.SHA512.Algorithm() == ident.SHA256 || r.SHA256.Algorithm() == ident.SHA512 {
			t.Errorf("record is %+v", r)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseRecord(text)
		if err != nil {
			t.Fatalf("%s cannot be parsed: %v", text, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(text) {
			t.Errorf("%s is parsed and written as %s, error %v", text, twice, err)
		}
	})
}
