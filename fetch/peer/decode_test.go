package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const (
	nodeHead     = `{"node":"node1","config":"c0ffee","disks":[`
	diskHead     = `{"name":"disk1","uuid":"3f1e","total":10,"free":5,"copies":[`
	parrotFields = `"name":"parrot","uuid":"0a1b2c3d"`
)

func stateWithCopy(fields string) string {
	return nodeHead + diskHead + "{" + parrotFields + fields + "}]}]}"
}

func TestDecodeRejectsInvalidStates(t *testing.T) {
	sha512 := strings.Repeat("a", 128)
	var manyFields strings.Builder
	for i := range maxFields {
		fmt.Fprintf(&manyFields, `"a%d":1,`, i)
	}
	for _, test := range []struct{ name, text, message string }{
		{"nothing", "", "unexpected EOF"},
		{"null", "null", "is missing"},
		{"an array", "[]", "is missing"},
		{"garbage", "\x00\xff\x17", "invalid character"},
		{"HTML", "<html>", "invalid character"},
		{"truncated", nodeHead + diskHead, "unexpected EOF"},
		{"a second document", nodeHead + "]} {}", "after the document"},
		{"a surplus brace", nodeHead + "]}}", "after the document"},
		{"no node name", "{}", "node"},
		{"an empty node name", `{"node":""}`, "node"},
		{"a node name with control characters", `{"node":"a\u001b[2Jb"}`, "node"},
		{"a node name with another direction of text", "{\"node\":\"a\\u202eb\"}", "node"},
		{"a long node name", `{"node":"` + strings.Repeat("n", 254) + `"}`, "node"},
		{"a number as node name", `{"node":7}`, "number"},
		{"a duplicate field", `{"node":"node1","node":"node2"}`, "duplicate field"},
		{"disks that are no array", `{"node":"node1","disks":7}`, "array"},
		{"null as disk", nodeHead + `null]}`, "is missing"},
		{"a disk without a name", nodeHead + `{"uuid":"3f1e"}]}`, "disk"},
		{"a duplicate disk", nodeHead + diskHead + "]}," + diskHead + "]}]}", `duplicate disk "disk1"`},
		{"null as copy", nodeHead + diskHead + "null]}]}", "name"},
		{"a duplicate copy", nodeHead + diskHead + "{" + parrotFields + "},{" + parrotFields + "}]}]}", "duplicate copy parrot-0a1b2c3d"},
		{"an image name with a path", nodeHead + diskHead + `{"name":"../etc","uuid":"0a1b2c3d"}]}]}`, "use a-z"},
		{"no uuid", nodeHead + diskHead + `{"name":"parrot"}]}]}`, "8 hex digits"},
		{"a size beyond int64", stateWithCopy(`,"size":99999999999999999999`), "number"},
		{"a short digest", stateWithCopy(`,"sha512":"abcd"`), "4 digits"},
		{"a SHA-512 as sha256", stateWithCopy(`,"sha256":"` + sha512 + `"`), "algorithm"},
		{"a SHA-512 as chunks", stateWithCopy(`,"chunks":"` + sha512 + `"`), "algorithm"},
		{"an invalid time", stateWithCopy(`,"verified":"yesterday"`), "yesterday"},
		{"a duplicate unknown field", "{" + strings.Repeat(`"a":1,`, 2) + `"node":"n"}`, "duplicate field"},
		{"too many fields", "{" + manyFields.String() + `"node":"n"}`, "more than 256 fields"},
		{"deep nesting", strings.Repeat(`{"a":`, 20000), "depth"},
	} {
		_, err := decodeState(strings.NewReader(test.text), Scope{})
		if err == nil || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.message)
		}
	}
}

func TestDecodeLimitsDisks(t *testing.T) {
	var disks strings.Builder
	for i := range maxDisks + 1 {
		fmt.Fprintf(&disks, `{"name":"disk%d"},`, i)
	}
	if _, err := decodeState(strings.NewReader(nodeHead+disks.String()), Scope{}); err == nil || !strings.HasSuffix(err.Error(), "more than 1024 disks") {
		t.Errorf("got %v", err)
	}
}

// A node has more orphans, more unmanaged copies and more disks than the configuration has places
// for. The copies of the declared generations are all kept, whatever comes before them, and the state
// says what is missing.
func TestDecodeKeepsWhatTheConfigurationCanMean(t *testing.T) {
	race.Skip(t)
	scope := Scope{Disks: map[string]bool{"disk1": true}, Images: map[string]string{"parrot": "0a1b2c3d", "zebra": "0000000f"}, Kept: 2}
	for _, test := range []struct {
		name, copy    string
		n             int
		kept, omitted int
		partial       bool
	}{
		{"few orphans", `{"name":"orphan%05d","uuid":"00000001","state":"unknown","owned":true}`, 100, 100, 0, false},
		{"many orphans", `{"name":"orphan%05d","uuid":"00000001","state":"unknown","owned":true}`, 5000, minOthers + 8, 5000 - minOthers - 8, false},
		{"old generations", `{"name":"parrot","uuid":"%08x","state":"unknown","owned":true}`, 5000, minOthers + 8, 5000 - minOthers - 8, false},
		{"unmanaged copies in use", `{"name":"a%05d","uuid":"00000001","state":"unknown","using":"vol-1"}`, 100, 100, 0, false},
		{"unmanaged copies", `{"name":"a%05d","uuid":"00000001","state":"unknown"}`, 30000, maxIdle, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var text strings.Builder
			text.WriteString(nodeHead + diskHead)
			for i := range test.n {
				fmt.Fprintf(&text, test.copy+",", i)
			}
			text.WriteString("{" + parrotFields + `,"state":"pending"},{"name":"zebra","uuid":"0000000f","state":"pending"}]}]}`)
			s, err := decodeState(strings.NewReader(text.String()), scope)
			if err != nil {
				t.Fatal(err)
			}
			copies := s.Disks[0].Copies
			if got := len(copies) - 2; got != test.kept || s.Omitted != test.omitted || s.Partial != test.partial {
				t.Errorf("%d copies, %d omitted, partial %v; want %d, %d, %v", got, s.Omitted, s.Partial, test.kept, test.omitted, test.partial)
			}
			for _, id := range []ident.ID{parrot, {Name: "zebra", UUID: "0000000f"}} {
				if !slices.ContainsFunc(copies, func(c Copy) bool { return c.ID == id }) {
					t.Errorf("%s is missing", id)
				}
			}
		})
	}
}

// The copies of a disk that is not declared are not read, whatever they are.
func TestDecodeSkipsDisksThatAreNotDeclared(t *testing.T) {
	text := nodeHead + `{"name":"other","uuid":"3f1e","copies":[7,{"name":"../etc"}]},` + diskHead + "{" + parrotFields + `,"state":"pending"}]}]}`
	s, err := decodeState(strings.NewReader(text), Scope{Disks: map[string]bool{"disk1": true}})
	if err != nil || len(s.Disks) != 1 || len(s.Disks[0].Copies) != 1 || !s.Partial {
		t.Errorf("got %+v, %v", s, err)
	}
}

// TestDecodeAcceptsStatesOfOtherVersions: a newer version may send unknown words, unknown fields and
// longer messages.
func TestDecodeAcceptsStatesOfOtherVersions(t *testing.T) {
	long := strings.Repeat("ä", maxMessage)
	text := stateWithCopy(`,"state":"dreaming","format":"vmdk","message":"` + long + `","using":"a\u001b[2Jb",
		"new":{"deep":[1,{"x":null}]},"try":{"attempts":-4,"since":1e300,"again":-1e300,"new":1}`)
	s, err := decodeState(strings.NewReader(strings.Replace(text, `"config"`, `"new":[[]],"config"`, 1)), Scope{})
	if err != nil {
		t.Fatal(err)
	}
	want := Copy{
		Copy:   disk.Copy{ID: parrot, State: disk.Unknown, Message: long[:maxMessage]},
		UsedBy: "a\ufffd[2Jb", Failure: &Failure{RetryIn: -maxSeconds},
	}
	if got := s.Disks[0].Copies[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestDecodeReadsEachField(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	sha512, sha256 := digestOf(ident.SHA512, ""), digestOf(ident.SHA256, "")
	want := State{Node: "node1", Config: "c", Clock: at, Mark: "m", Disks: []Disk{{
		Name: "disk1", UUID: "u", Problem: "p", ReadOnly: true, UsageUnknown: "u", Total: 2, Free: 1,
		Copies: []Copy{{
			Copy: disk.Copy{
				ID: parrot, State: disk.Ready, Message: "m", Format: disk.Raw, Size: 1, VirtualSize: 2, RealSize: 3,
				SHA512: sha512, SHA256: sha256, ManifestDigest: sha256, Owned: true,
				VerifiedAt: at, ReadBackAt: at, DamagedAt: at, LastUsed: at, SurplusSince: at, ReplacedAt: at, PartBytes: 4, PartTotal: 5,
			},
			UsedBy: "u", Demand: "d", DemandSince: at, Leaving: true, Mark: "m", Action: "verify", FromPeers: true,
			Rejection: "r", RejectionTemporary: true, Reason: "r", ReasonCode: "no-space", Failure: &Failure{Action: "a", Message: "m", Attempts: 6, Since: -7, RetryIn: 8, Final: true, Disk: true, Link: true},
		}},
	}}}
	for _, v := range []any{want, want.Disks[0], want.Disks[0].Copies[0], *want.Disks[0].Copies[0].Failure} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if field.Tag.Get("json") != "-" && reflect.ValueOf(v).FieldByIndex(field.Index).IsZero() {
				t.Errorf("the test does not set %T.%s", v, field.Name)
			}
		}
	}
	got, err := decodeState(bytes.NewReader(encode(want)), Scope{})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("error %v, got\n%+v, want\n%+v", err, got, want)
	}
}

// TestDecodeBoundsTheTexts: a peer sends a different long text in each field of many copies. Whatever the
// field, only the first ones are kept in full.
func TestDecodeBoundsTheTexts(t *testing.T) {
	const copies = 3000
	for _, field := range []string{`"message":%q`, `"using":%q`, `"doing":%q`, `"refuses":%q`, `"why":%q`, `"whyCode":%q`, `"try":{"message":%q}`, `"try":{"action":%q}`} {
		var sent strings.Builder
		sent.WriteString(nodeHead + diskHead)
		for i := range copies {
			text := fmt.Sprintf("%d ", i) + strings.Repeat("m", maxMessage)
			fmt.Fprintf(&sent, `{"name":"n%d","uuid":"00000001","owned":true,`+field+"},", i, text)
		}
		s, err := decodeState(strings.NewReader(strings.TrimSuffix(sent.String(), ",")+"]}]}"), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, c := range s.Disks[0].Copies {
			kept += len(c.Message + c.UsedBy + c.Action + c.Rejection + c.Reason + c.ReasonCode)
			if c.Failure != nil {
				kept += len(c.Failure.Message + c.Failure.Action)
			}
		}
		if limit := maxTexts + copies*shortText; len(s.Disks[0].Copies) != copies || kept > limit {
			t.Errorf("%s: %d copies with %d bytes of texts, want %d copies with at most %d bytes", field, len(s.Disks[0].Copies), kept, copies, limit)
		}
	}
}

// TestDecodeCorrectsInvalidSizes checks that an invalid size of one file or disk does not invalidate
// the whole state.
func TestDecodeCorrectsInvalidSizes(t *testing.T) {
	for _, size := range []string{`"size":-1`, `"virtualSize":1125899906842625`} {
		s, err := decodeState(strings.NewReader(stateWithCopy(`,"state":"ready","sha512":"`+strings.Repeat("ab", 64)+`",`+size)), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		if c := s.Disks[0].Copies[0]; c.State != disk.Unknown || c.Size != 0 || c.VirtualSize != 0 {
			t.Errorf("%s: got %+v", size, c)
		}
	}
	s, err := decodeState(strings.NewReader(nodeHead+`{"name":"disk1","free":-1,"total":9000000000000000000}]}`), Scope{})
	if err != nil || s.Disks[0].Free != 0 || s.Disks[0].Total != maxSpace {
		t.Errorf("got %+v, %v", s, err)
	}
}

// TestDecodeRemovesInvalidTimes: status has the times of peers, and JSON cannot encode all of them.
func TestDecodeRemovesInvalidTimes(t *testing.T) {
	for text, valid := range map[string]bool{
		"2026-11-20T10:00:00Z": true, "9000-12-31T23:59:59Z": true,
		"9001-01-01T00:00:00Z": false, "9999-12-31T23:59:59-23:59": false, "0000-01-01T00:00:00+23:59": false,
	} {
		times := fmt.Sprintf(`,"verified":%[1]q,"damaged":%[1]q,"lastUsed":%[1]q,"unwantedSince":%[1]q,"replaced":%[1]q,"demandSince":%[1]q`, text)
		s, err := decodeState(strings.NewReader(stateWithCopy(times)), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		c := s.Disks[0].Copies[0]
		for _, got := range []time.Time{c.VerifiedAt, c.DamagedAt, c.LastUsed, c.SurplusSince, c.ReplacedAt, c.DemandSince} {
			if got.IsZero() == valid {
				t.Errorf("%s is %v", text, got)
			}
		}
	}
}

func TestReadyCopyWithoutDigestDecodesAsUnknown(t *testing.T) {
	s, err := decodeState(strings.NewReader(stateWithCopy(`,"state":"ready"`)), Scope{})
	if err != nil || s.Disks[0].Copies[0].State != disk.Unknown {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestDecodeSortsDisksAndCopies(t *testing.T) {
	s, err := decodeState(strings.NewReader(nodeHead+`{"name":"b"},{"name":"a","copies":[
		{"name":"parrot","uuid":"00000002"},{"name":"parrot","uuid":"00000001"},{"name":"ant","uuid":"00000003"}]}]}`), Scope{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range s.Disks {
		got = append(got, d.Name)
		for _, c := range d.Copies {
			got = append(got, c.ID.String())
		}
	}
	if want := "[a ant-00000003 parrot-00000001 parrot-00000002 b]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func FuzzState(f *testing.F) {
	full := stateWith("node1", 3)
	full.Disks[0].Copies[1].Failure = &Failure{Action: "sync", Message: "no route", Attempts: 2, Since: -3, RetryIn: 7.5, Link: true}
	full.Disks[0].Copies[2].PartBytes, full.Disks[0].Copies[2].State = 1<<20, disk.InProgress
	full.Disks = append(full.Disks, Disk{Name: "disk2", Problem: "not found"})
	f.Add(encode(full))
	f.Add(encode(State{Node: "node1"}))
	f.Add([]byte(stateWithCopy(`,"state":"dreaming","new":[1,{"x":null}],"try":null`)))
	f.Add([]byte(`{"node":"node1","disks":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodeState(bytes.NewReader(text), Scope{})
		if err != nil {
			return
		}
		checkInvariants(t, s)
		again, err := decodeState(bytes.NewReader(encode(s)), Scope{})
		if err != nil {
			t.Fatalf("the decoded state is rejected after encoding: %v", err)
		}
		if got, want := etagOf(again), etagOf(s); got != want {
			a, _ := json.Marshal(again)
			b, _ := json.Marshal(s)
			t.Fatalf("encoding and decoding changed the state:\n%s\n%s", a, b)
		}
	})
}

// checkInvariants checks the properties of a peer's state on which the planner relies.
func checkInvariants(t *testing.T, s State) {
	if s.Node == "" {
		t.Fatal("no node")
	}
	disks, copies := map[string]bool{}, map[string]bool{}
	for _, d := range s.Disks {
		if d.Name == "" || disks[d.Name] || d.Free < 0 || d.Total < 0 {
			t.Fatalf("disk %+v", d)
		}
		disks[d.Name] = true
		for _, c := range d.Copies {
			if ident.CheckName(c.Name) != nil || ident.CheckUUID(c.UUID) != nil || copies[d.Name+"/"+c.ID.String()] {
				t.Fatalf("copy %+v", c)
			}
			copies[d.Name+"/"+c.ID.String()] = true
			if min(c.Size, c.VirtualSize, c.RealSize, c.PartBytes, c.PartTotal) < 0 || c.State == disk.Ready && c.SHA512.IsZero() {
				t.Fatalf("copy %+v", c)
			}
			if c.Failure != nil && (math.Abs(c.Failure.RetryIn) > maxSeconds || c.Failure.Since > 0 || c.Failure.Attempts < 0) {
				t.Fatalf("failure %+v", *c.Failure)
			}
		}
	}
}
