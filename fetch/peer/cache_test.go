package peer

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// clone returns a deep copy of all fields of s that Publish compares.
func clone(s State) State {
	s.Disks = slices.Clone(s.Disks)
	for i := range s.Disks {
		s.Disks[i].Copies = slices.Clone(s.Disks[i].Copies)
		for j := range s.Disks[i].Copies {
			if f := s.Disks[i].Copies[j].Failure; f != nil {
				other := *f
				s.Disks[i].Copies[j].Failure = &other
			}
		}
	}
	return s
}

func publishedETag(c *StateCache) string {
	s, _ := c.latest()
	return s.etag
}

// TestETagChangesWithEachFieldExceptVolatileOnes checks every field with a JSON name. It fails for a
// new field that EqualStates does not compare.
func TestETagChangesWithEachFieldExceptVolatileOnes(t *testing.T) {
	base := stateWith("node1", 2)
	base.Disks[0].Copies[1].Failure = &Failure{Action: "sync", Attempts: 1}
	volatile := map[string]bool{"State.Clock": true, "Disk.Total": true, "Disk.Free": true, "Copy.Reason": true, "Failure.Since": true, "Failure.RetryIn": true}
	tested := 0
	for _, part := range []func(*State) any{
		func(s *State) any { return s },
		func(s *State) any { return &s.Disks[0] },
		func(s *State) any { return &s.Disks[0].Copies[0] },
		func(s *State) any { return s.Disks[0].Copies[1].Failure },
	} {
		of := reflect.TypeOf(part(&base)).Elem()
		for _, field := range reflect.VisibleFields(of) {
			if field.Anonymous {
				continue
			}
			changed := clone(base)
			change(t, reflect.ValueOf(part(&changed)).Elem().FieldByIndex(field.Index))
			c := NewStateCache()
			c.Publish(base)
			before := publishedETag(c)
			c.Publish(changed)
			name := of.Name() + "." + field.Name
			want := !volatile[name] && field.Tag.Get("json") != "-"
			if got := publishedETag(c) != before; got != want {
				t.Errorf("%s: the ETag changed: %v, want %v", name, got, want)
			}
			if s, _ := c.latest(); !reflect.DeepEqual(s.state, changed) {
				t.Errorf("%s: the cache does not have the published state", name)
			}
			tested++
		}
	}
	if tested < 35 {
		t.Errorf("only %d fields were tested", tested)
	}
}

// change sets a field to another value.
func change(t *testing.T, f reflect.Value) {
	switch v := f.Addr().Interface().(type) {
	case *disk.FolderID:
		v.Inode++
	case *ident.Digest:
		*v = digestOf(ident.SHA256, "another")
	case *disk.Declaration:
		v.File += "x"
	case *disk.Signature:
		v.Signer += "x"
	case *time.Time:
		*v = time.Unix(1_800_000_000, 0).UTC()
	case **Failure:
		*v = &Failure{Action: "sync"}
	case *[]Disk:
		*v = nil
	case *[]Copy:
		*v = (*v)[:1]
	default:
		switch f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Float64:
			f.SetFloat(f.Float() - 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			t.Fatalf("unexpected kind of field: %v", f.Kind())
		}
	}
}

func TestETagChangesWhenPartialFileAppearsButNotWhenItGrows(t *testing.T) {
	s := stateWith("node1", 1)
	c := NewStateCache()
	var etags []string
	for _, bytes := range []int64{0, 1 << 20, 2 << 20, 0} {
		s = clone(s)
		s.Disks[0].Copies[0].PartBytes = bytes
		c.Publish(s)
		etags = append(etags, publishedETag(c))
	}
	if etags[0] == etags[1] || etags[1] != etags[2] || etags[0] != etags[3] {
		t.Errorf("got %v", etags)
	}
}

func TestETagIgnoresTheTimeZone(t *testing.T) {
	s := stateWith("node1", 1)
	c := NewStateCache()
	c.Publish(s)
	before, changed := c.latest()
	s = clone(s)
	s.Disks[0].Copies[0].VerifiedAt = time.Now().Round(0)
	c.Publish(s)
	after, again := c.latest()
	s = clone(s)
	s.Disks[0].Copies[0].VerifiedAt = s.Disks[0].Copies[0].VerifiedAt.In(time.FixedZone("", 3600))
	c.Publish(s)
	if before.etag == after.etag || changed == again {
		t.Error("a different time does not change the ETag")
	}
	if got := publishedETag(c); got != after.etag {
		t.Error("the same time in another time zone changes the ETag")
	}
}

func TestPublishingAnEqualStateDoesNotAllocate(t *testing.T) {
	s, equal := stateWith("node1", 1000), stateWith("node1", 1000)
	c := NewStateCache()
	c.Publish(s)
	if n := testing.AllocsPerRun(10, func() { c.Publish(equal) }); n > 1 { // only the snapshot is allocated
		t.Errorf("%.0f allocations", n)
	}
}

func BenchmarkPublish(b *testing.B) {
	s, equal := stateWith("node1", 1000), stateWith("node1", 1000)
	other := clone(s)
	other.Config = "decade"
	b.Run("same", func(b *testing.B) {
		c := NewStateCache()
		c.Publish(s)
		b.ReportAllocs()
		for b.Loop() {
			c.Publish(equal)
		}
	})
	b.Run("changed", func(b *testing.B) {
		c := NewStateCache()
		b.ReportAllocs()
		for b.Loop() {
			c.Publish(s)
			c.Publish(other)
		}
	})
	b.Run("encoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			plain, gzipped := (&snapshot{state: s}).encoded()
			b.ReportMetric(float64(len(plain)), "bytes")
			b.ReportMetric(float64(len(gzipped)), "gzip-bytes")
		}
	})
	b.Run("decoded", func(b *testing.B) {
		text := string(encode(s))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeState(strings.NewReader(text), Scope{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
