package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const (
	nodeHead     = `{"version":1,"node":"node1","configDigest":"c0ffee","disks":{`
	diskHead     = `"disk1":{"uuid":"3f1e","total":10,"free":5,"copies":[`
	parrotFields = `"id":"parrot-0a1b2c3d"`
)

func stateWithCopy(fields string) string {
	return nodeHead + diskHead + "{" + parrotFields + fields + "}]}}}"
}

func TestDecodeRejectsInvalidStates(t *testing.T) {
	sha512 := strings.Repeat("a", 128)
	for _, test := range []struct{ name, text, message string }{
		{"nothing", "", "unexpected EOF"},
		{"null", "null", "want an object"},
		{"an array", "[]", "want an object"},
		{"garbage", "\x00\xff\x17", "invalid character"},
		{"HTML", "<html>", "invalid character"},
		{"truncated", nodeHead + diskHead, "unexpected EOF"},
		{"a second document", nodeHead + "}} {}", "after the document"},
		{"a surplus brace", nodeHead + "}}}", "after the document"},
		{"no node name", `{"version":1}`, "node"},
		{"an empty node name", `{"version":1,"node":""}`, "node"},
		{"a node name with control characters", `{"version":1,"node":"a\u001b[2Jb"}`, "node"},
		{"a node name with another direction of text", "{\"version\":1,\"node\":\"a\\u202eb\"}", "node"},
		{"a long node name", `{"version":1,"node":"` + strings.Repeat("n", 254) + `"}`, "node"},
		{"a number as node name", `{"version":1,"node":7}`, "number"},
		{"no version", `{"node":"node1"}`, "it has version 0 of the format, and this program has version 1: run the same release of backing-image-manager on all nodes"},
		{"a later version", `{"version":2,"node":7}`, "it has version 2 of the format"},
		{"disks that are no object", `{"version":1,"node":"node1","disks":7}`, "object"},
		{"null as disk", nodeHead + `"disk1":null}}`, "want an object"},
		{"a disk without a name", nodeHead + `"":{"uuid":"3f1e"}}}`, "disk"},
		{"a duplicate disk", nodeHead + diskHead + "]}," + diskHead + "]}}}", `duplicate disk "disk1"`},
		{"null as copy", nodeHead + diskHead + "null]}}}", "name"},
		{"a duplicate copy", nodeHead + diskHead + "{" + parrotFields + "},{" + parrotFields + "}]}}}", "duplicate copy parrot-0a1b2c3d"},
		{"an image name with a path", nodeHead + diskHead + `{"id":"../etc-0a1b2c3d"}]}}}`, "use a-z"},
		{"no uuid", nodeHead + diskHead + `{"id":"parrot-xyz"}]}}}`, "8 hex digits"},
		{"a size beyond int64", stateWithCopy(`,"size":99999999999999999999`), "number"},
		{"a short digest", stateWithCopy(`,"sha512":"abcd"`), "4 digits"},
		{"a SHA-512 as sha256", stateWithCopy(`,"sha256":"` + sha512 + `"`), "algorithm"},
		{"a SHA-512 as manifestDigest", stateWithCopy(`,"manifestDigest":"` + sha512 + `"`), "algorithm"},
		{"an invalid time", stateWithCopy(`,"verifiedAt":"yesterday"`), "yesterday"},
		{"a long copy", stateWithCopy(`,"message":"` + strings.Repeat("m", 2*maxElement) + `"`), "more than 65536 bytes"},
		{"deep nesting", `{"version":1,"a":` + strings.Repeat(`{"a":`, 20000), "100 levels"},
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
		fmt.Fprintf(&disks, `"disk%d":{},`, i)
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
		{"few orphans", `{"id":"orphan%05d-00000001","state":"unknown","owned":true}`, 100, 100, 0, false},
		{"many orphans", `{"id":"orphan%05d-00000001","state":"unknown","owned":true}`, 5000, minOthers + 8, 5000 - minOthers - 8, false},
		{"old generations", `{"id":"parrot-%08x","state":"unknown","owned":true}`, 5000, minOthers + 8, 5000 - minOthers - 8, false},
		{"unmanaged copies in use", `{"id":"a%05d-00000001","state":"unknown","usedBy":"vol-1"}`, 100, 100, 0, false},
		{"unmanaged copies", `{"id":"a%05d-00000001","state":"unknown"}`, 30000, maxIdle, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var text strings.Builder
			text.WriteString(nodeHead + diskHead)
			for i := range test.n {
				fmt.Fprintf(&text, test.copy+",", i)
			}
			text.WriteString("{" + parrotFields + `,"state":"pending"},{"id":"zebra-0000000f","state":"pending"}]}}}`)
			s, err := decodeState(strings.NewReader(text.String()), scope)
			if err != nil {
				t.Fatal(err)
			}
			copies := s.Disks["disk1"].Copies
			if got := len(copies) - 2; got != test.kept || s.Omitted != test.omitted || s.Partial != test.partial {
				t.Errorf("%d copies, %d omitted, partial %v; want %d, %d, %v", got, s.Omitted, s.Partial, test.kept, test.omitted, test.partial)
			}
			for _, id := range []ident.ID{parrot, {Name: "zebra", UUID: "0000000f"}} {
				if _, kept := copies[id]; !kept {
					t.Errorf("%s is missing", id)
				}
			}
		})
	}
}

// The copies of a disk that is not declared are not read, whatever they are.
func TestDecodeKeepsConditionsOfDeclaredImages(t *testing.T) {
	since := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	scope := Scope{Images: map[string]string{"parrot": "0a1b2c3d"}}
	text := `{"version":1,"node":"node1","conditions":[{"kind":"not-ready","image":"parrot","since":"2026-12-01T12:00:00Z"},` +
		`{"kind":"not-ready","image":"macaw","since":"2026-12-01T12:00:00Z"},{"kind":"prune-limit","since":"2026-12-01T12:00:00Z"}`
	want := []model.Condition{{Kind: "not-ready", Image: "parrot", Since: since}, {Kind: "prune-limit", Since: since}}
	if s, err := decodeState(strings.NewReader(text+"]}"), scope); err != nil || !slices.Equal(s.Conditions, want) {
		t.Errorf("got %+v, %v, want %+v", s.Conditions, err, want)
	}
	if s, err := decodeState(strings.NewReader(text+strings.Repeat(`,{"kind":"x"}`, 1_000_000)+"]}"), scope); err != nil || len(s.Conditions) != scope.maxConditions() {
		t.Errorf("got %d conditions, %v, want %d", len(s.Conditions), err, scope.maxConditions())
	}
}

func TestDecodeSkipsDisksThatAreNotDeclared(t *testing.T) {
	text := nodeHead + `"other":{"uuid":"3f1e","copies":[7,{"id":"../etc"}]},` + diskHead + "{" + parrotFields + `,"state":"pending"}]}}}`
	s, err := decodeState(strings.NewReader(text), Scope{Disks: map[string]bool{"disk1": true}})
	if err != nil || len(s.Disks) != 1 || len(s.Disks["disk1"].Copies) != 1 || !s.Partial {
		t.Errorf("got %+v, %v", s, err)
	}
}

// TestDecodeAcceptsStatesOfOtherVersions: a newer version may send unknown words, unknown fields and
// longer messages.
func TestDecodeAcceptsStatesOfOtherVersions(t *testing.T) {
	long := strings.Repeat("ä", maxMessage)
	text := stateWithCopy(`,"state":"dreaming","format":"vmdk","message":"` + long + `","usedBy":"a\u001b[2Jb",
		"new":{"deep":[1,{"x":null}]},"failure":{"attempts":-4,"fault":"moon","new":1}`)
	s, err := decodeState(strings.NewReader(strings.Replace(text, `"configDigest"`, `"new":[[]],"configDigest"`, 1)), Scope{})
	if err != nil {
		t.Fatal(err)
	}
	want := model.Copy{ID: parrot, State: model.Unknown, Message: long[:maxMessage], UsedBy: "a\ufffd[2Jb", Failure: &model.Failure{}}
	if got := s.Disks["disk1"].Copies[parrot]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestDecodeReadsEachField(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	sha512, sha256 := digestOf(ident.SHA512, ""), digestOf(ident.SHA256, "")
	c := model.Copy{
		ID: parrot, State: model.Ready, Message: "m", Format: model.Raw, Size: 1, VirtualSize: 2, RealSize: 3,
		SHA512: sha512, SHA256: sha256, ManifestDigest: sha256, Owned: true,
		VerifiedAt: at, ReadBackAt: at, DamagedAt: at, Usage: model.Usage{LastUsed: at, SurplusSince: at, ReplacedAt: at},
		PartBytes: 4, PartTotal: 5, PartKind: model.PartFromPeers,
		UsedBy: "u", Need: &model.Need{By: "d", Since: at}, Leaving: true, Mark: "m", Job: model.Verify,
		Rejection: "r", RejectionTemporary: true, Reason: model.Reason{Code: "no-space", Text: "r"},
		Failure: &model.Failure{Op: "a", Message: "m", Attempts: 6, Since: at, RetryAt: at, Final: true, Fault: model.FaultDisk},
	}
	want := model.Node{Version: model.Version, Node: "node1", ConfigDigest: "c", Clock: at, Mark: "m", Conditions: []model.Condition{{Kind: "k", Image: "i", Since: at}}, Disks: map[string]model.Disk{"disk1": {
		UUID: "u", Problem: "p", ReadOnly: true, UsageUnknown: "u", Space: model.Space{Total: 2, Free: 1}, Copies: model.NewCopies(c),
	}}}
	ofOwnNode := []string{ // what a node does not say to others
		"Copy.HasIndex", "Copy.Signature", "Copy.HasCfg", "Copy.Declaration", "Copy.ClockNode", "Copy.InUseRecorded", "Copy.SameAs", "Copy.Unproven",
		"Disk.Path", "Disk.ProblemSince", "Disk.Disputed", "Disk.ClockStepped", "Disk.Unmanaged", "Failure.NeedsSpace", "Failure.Unrepairable", "Failure.Suspects",
	}
	for _, v := range []any{want, want.Disks["disk1"], c, *c.Failure} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v)) {
			name := reflect.TypeOf(v).Name() + "." + field.Name
			if field.Tag.Get("json") != "-" && !slices.Contains(ofOwnNode, name) && reflect.ValueOf(v).FieldByIndex(field.Index).IsZero() {
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
	for _, field := range []string{`"message":%q`, `"usedBy":%q`, `"need":{"by":%q}`, `"job":%q`, `"rejection":%q`, `"reason":{"text":%q}`, `"reason":{"code":%q}`, `"failure":{"message":%q}`, `"failure":{"op":%q}`} {
		var sent strings.Builder
		sent.WriteString(nodeHead + diskHead)
		for i := range copies {
			text := fmt.Sprintf("%d ", i) + strings.Repeat("m", maxMessage)
			fmt.Fprintf(&sent, `{"id":"n%d-00000001","owned":true,`+field+"},", i, text)
		}
		s, err := decodeState(strings.NewReader(strings.TrimSuffix(sent.String(), ",")+"]}}}"), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, c := range s.Disks["disk1"].Copies {
			kept += len(c.Message + c.UsedBy + string(c.Job) + c.Rejection + c.Reason.Text + string(c.Reason.Code))
			if c.Need != nil {
				kept += len(c.Need.By)
			}
			if c.Failure != nil {
				kept += len(c.Failure.Message + string(c.Failure.Op))
			}
		}
		if limit := maxTexts + copies*shortText; len(s.Disks["disk1"].Copies) != copies || kept > limit {
			t.Errorf("%s: %d copies with %d bytes of texts, want %d copies with at most %d bytes", field, len(s.Disks["disk1"].Copies), kept, copies, limit)
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
		if c := s.Disks["disk1"].Copies[parrot]; c.State != model.Unknown || c.Size != 0 || c.VirtualSize != 0 {
			t.Errorf("%s: got %+v", size, c)
		}
	}
	s, err := decodeState(strings.NewReader(nodeHead+`"disk1":{"free":-1,"total":9000000000000000000}}}`), Scope{})
	if err != nil || s.Disks["disk1"].Free != 0 || s.Disks["disk1"].Total != maxSpace {
		t.Errorf("got %+v, %v", s, err)
	}
}

// TestDecodeRemovesInvalidTimes: status has the times of peers, and JSON cannot encode all of them.
func TestDecodeRemovesInvalidTimes(t *testing.T) {
	for text, valid := range map[string]bool{
		"2026-11-20T10:00:00Z": true, "9000-12-31T23:59:59Z": true,
		"9001-01-01T00:00:00Z": false, "9999-12-31T23:59:59-23:59": false, "0000-01-01T00:00:00+23:59": false,
	} {
		times := fmt.Sprintf(`,"verifiedAt":%[1]q,"damagedAt":%[1]q,"lastUsed":%[1]q,"surplusSince":%[1]q,"replacedAt":%[1]q,"need":{"by":"x","since":%[1]q},"failure":{"since":%[1]q,"retryAt":%[1]q}`, text)
		s, err := decodeState(strings.NewReader(stateWithCopy(times)), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		c := s.Disks["disk1"].Copies[parrot]
		for _, got := range []time.Time{c.VerifiedAt, c.DamagedAt, c.LastUsed, c.SurplusSince, c.ReplacedAt, c.Need.Since, c.Failure.Since, c.Failure.RetryAt} {
			if got.IsZero() == valid {
				t.Errorf("%s is %v", text, got)
			}
		}
	}
}

func TestReadyCopyWithoutDigestDecodesAsUnknown(t *testing.T) {
	s, err := decodeState(strings.NewReader(stateWithCopy(`,"state":"ready"`)), Scope{})
	if err != nil || s.Disks["disk1"].Copies[parrot].State != model.Unknown {
		t.Errorf("got %+v, %v", s, err)
	}
}

func FuzzState(f *testing.F) {
	full := stateWith("node1", 3)
	at := time.Unix(1_700_000_000, 0)
	changeCopy(full, imageID(1), func(c *model.Copy) {
		c.Failure = &model.Failure{Op: model.Sync, Message: "no route", Attempts: 2, Since: at, RetryAt: at, Fault: model.FaultNetwork}
	})
	changeCopy(full, imageID(2), func(c *model.Copy) {
		c.PartBytes, c.State, c.Need = 1<<20, model.InProgress, &model.Need{By: "replica x"}
	})
	full.Disks["disk2"] = model.Disk{Problem: "not found"}
	f.Add(encode(full))
	f.Add(encode(model.Node{Version: model.Version, Node: "node1"}))
	f.Add([]byte(stateWithCopy(`,"state":"dreaming","new":[1,{"x":null}],"failure":null`)))
	f.Add([]byte(`{"version":1,"node":"node1","disks":null}`))
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
func checkInvariants(t *testing.T, s model.Node) {
	if s.Node == "" {
		t.Fatal("no node")
	}
	for name, d := range s.Disks {
		if name == "" || d.Free < 0 || d.Total < 0 {
			t.Fatalf("disk %q: %+v", name, d)
		}
		for id, c := range d.Copies {
			if id != c.ID || ident.CheckName(id.Name) != nil || ident.CheckUUID(id.UUID) != nil {
				t.Fatalf("copy %+v", c)
			}
			if min(c.Size, c.VirtualSize, c.RealSize, c.PartBytes, c.PartTotal) < 0 || c.State == model.Ready && c.SHA512.IsZero() {
				t.Fatalf("copy %+v", c)
			}
			if f := c.Failure; f != nil && (f.Attempts < 0 || f.NeedsSpace != 0 || f.Suspects != nil || f.Unrepairable) {
				t.Fatalf("failure %+v", *f)
			}
		}
	}
}
