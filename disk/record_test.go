package disk

import (
	"encoding/json"
	"reflect"
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
		Owner: recordOwner, Created: at, Format: model.QCOW2, VirtualSize: 10,
		Source: &PartSource{ID: "abc", ETag: `W/"x"`, LastModified: "Fri, 20 Nov 2026 09:00:00 GMT", Size: 7},
		SHA512: digest512(nil), SHA256: digest256(nil), ManifestDigest: digest256(nil), Size: 7, IndexDigest: digest256(nil),
		Signature:  model.Signature{Scheme: "openpgp", Signer: "0123ABCD", Time: at, Warning: "key-expired-since"},
		Evidence:   &Evidence{Size: 7, ModTime: at.UnixNano(), ChangeTime: at.UnixNano() + 1, Inode: 1 << 63},
		VerifiedAt: at, ReadBackAt: at, DamagedAt: at, Failed: "damaged", InUse: true, LastUsed: at, SurplusSince: at, ReplacedAt: at, ClockNode: "node1",
		BackupID: "0a", Declaration: model.Declaration{File: "a.yaml", Kind: "BackingImage", Name: "parrot", ConfigMap: "fleet"},
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
		{"only an owner", `{"owner":"backing-image-manager"}`, true},
		{"digests", `{"owner":"backing-image-manager","sha512":"` + sum512 + `","sha256":"` + sum256 + `"}`, true},
		{"a signature with a name that a terminal would obey", `{"owner":"backing-image-manager","signature":{"scheme":"x","signer":"\u001b[31m"}}`, true},
		{"unknown keys", `{"owner":"backing-image-manager","new":[{}]}`, true},
		{"no bytes", ``, false},
		{"torn", `{"owner":"backing-image-ma`, false},
		{"zeros", strings.Repeat("\x00", 100), false},
		{"null", `null`, false},
		{"an empty object", `{}`, false},
		{"another owner", `{"owner":"somebody"}`, false},
		{"a digest that is short", `{"owner":"backing-image-manager","sha512":"abcd"}`, false},
		{"a SHA-256 in sha512", `{"owner":"backing-image-manager","sha512":"` + sum256 + `"}`, false},
		{"a SHA-512 in sha256", `{"owner":"backing-image-manager","sha256":"` + sum512 + `"}`, false},
		{"a SHA-512 in manifestDigest", `{"owner":"backing-image-manager","manifestDigest":"` + sum512 + `"}`, false},
		{"a time that is not valid", `{"owner":"backing-image-manager","lastUsed":"yesterday"}`, false},
		{"a wrong type", `{"owner":"backing-image-manager","evidence":7}`, false},
		{"two records", `{"owner":"backing-image-manager"}{"owner":"backing-image-manager"}`, false},
	} {
		if _, err := ParseRecord([]byte(test.text)); (err == nil) != test.good {
			t.Errorf("%s: error %v", test.name, err)
		}
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
