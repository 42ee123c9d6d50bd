package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func TestVerifyByDaemonReportsTheStatusOfTheCopies(t *testing.T) {
	parse := func(text string) (s status.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := parse(`{"time":"2026-11-20T12:00:00Z","images":[{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
		{"id":"parrot-6846a0b2","node":"node1","disk":"disk1","state":"ready"},{"id":"parrot-6846a0b2","node":"node1","disk":"disk2","state":"pending"}]}]}`)
	for _, c := range []struct {
		name, now string
		pending   bool
		out, err  string
	}{
		{name: "no round since the request", now: `{"time":"2026-11-20T12:00:00Z"}`, pending: true},
		{name: "still running", pending: true,
			now: `{"node":"node1","time":"2026-11-20T12:00:01Z","plan":{"actions":[{"op":"verify","node":"node1","image":"parrot"}]}}`},
		{name: "only another image is verified", now: `{"node":"node1","time":"2026-11-20T12:00:01Z","plan":{"actions":[{"op":"verify","node":"node1","image":"desert"}]}}`},
		{name: "the bytes match", out: "parrot-6846a0b2 on node1/disk1: the bytes match: sha512 \n",
			now: `{"node":"node1","time":"2026-11-20T12:00:01Z","images":[{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
				{"id":"parrot-6846a0b2","node":"node1","disk":"disk1","state":"ready","verifiedAt":"2026-11-20T12:00:00.5Z"},{"id":"parrot-6846a0b2","node":"node1","disk":"disk2","state":"pending"}]}]}`},
		{name: "the disk cannot be read", err: "parrot-6846a0b2 on node1/disk1 could not be verified: input/output error",
			now: `{"node":"node1","time":"2026-11-20T12:00:01Z","images":[{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
				{"id":"parrot-6846a0b2","node":"node1","disk":"disk1","state":"ready","message":"input/output error"}]}]}`},
		{name: "damaged, a repair runs", err: "parrot-6846a0b2 on node1/disk1 is damaged and is being repaired: the command status shows the progress",
			now: `{"node":"node1","time":"2026-11-20T12:00:01Z","images":[{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
				{"id":"parrot-6846a0b2","node":"node1","disk":"disk1","state":"failed","message":"repair: damaged","running":true,"damagedAt":"2026-11-20T12:00:00.5Z"}]}]}`},
		{name: "damaged", err: "parrot-6846a0b2 on node1/disk1 is failed: damaged",
			now: `{"node":"node1","time":"2026-11-20T12:00:01Z","images":[{"name":"parrot","uuid":"6846a0b2","declared":true,"copies":[
				{"id":"parrot-6846a0b2","node":"node1","disk":"disk1","state":"failed","message":"damaged"},{"id":"parrot-6846a0b2","node":"node1","disk":"disk2","state":"pending"}]}]}`},
	} {
		now := parse(c.now)
		if got := isVerifying(before, now, "parrot"); got != c.pending {
			t.Errorf("%s: pending is %t", c.name, got)
		}
		if c.pending {
			continue
		}
		var out bytes.Buffer
		err := reportVerified(&out, before, now, "parrot")
		if out.String() != c.out || err == nil != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: output %q, error %v, want %q and %q", c.name, out.String(), err, c.out, c.err)
		}
	}
}
