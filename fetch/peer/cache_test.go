package peer

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// clone returns a deep copy of all fields of s that Publish compares.
func clone(s model.Node) model.Node {
	s.Disks = maps.Clone(s.Disks)
	for name, d := range s.Disks {
		d.Copies = maps.Clone(d.Copies)
		for id, c := range d.Copies {
			if c.Failure != nil {
				failure := *c.Failure
				c.Failure = &failure
			}
			d.Copies[id] = c
		}
		s.Disks[name] = d
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
	changeCopy(base, imageID(1), func(c *model.Copy) { c.Failure = &model.Failure{Op: model.Sync, Attempts: 1} })
	// Fields that change all the time, and those that a node does not say to others.
	ignored := []string{
		"Node.Version", "Node.Clock", "Disk.Total", "Disk.Free", "Copy.ID", "Failure.Since", "Failure.RetryAt",
		"Disk.Path", "Disk.ProblemSince", "Disk.Disputed", "Disk.ClockStepped", "Disk.Unmanaged",
	}
	tested := 0
	for _, part := range []func(s model.Node, change func(reflect.Value)) model.Node{
		func(s model.Node, change func(reflect.Value)) model.Node {
			change(reflect.ValueOf(&s).Elem())
			return s
		},
		func(s model.Node, change func(reflect.Value)) model.Node {
			d := s.Disks["disk1"]
			change(reflect.ValueOf(&d).Elem())
			s.Disks["disk1"] = d
			return s
		},
		func(s model.Node, change func(reflect.Value)) model.Node {
			changeCopy(s, imageID(0), func(c *model.Copy) { change(reflect.ValueOf(c).Elem()) })
			return s
		},
		func(s model.Node, change func(reflect.Value)) model.Node {
			changeCopy(s, imageID(1), func(c *model.Copy) { change(reflect.ValueOf(c.Failure).Elem()) })
			return s
		},
	} {
		var of reflect.Type
		part(clone(base), func(v reflect.Value) { of = v.Type() })
		for _, field := range reflect.VisibleFields(of) {
			name := of.Name() + "." + field.Name
			if field.Anonymous || slices.Contains(ignored, name) && name == "Copy.ID" {
				continue
			}
			changed := part(clone(base), func(v reflect.Value) { change(t, v.FieldByIndex(field.Index)) })
			c := NewStateCache()
			c.Publish(base)
			before := publishedETag(c)
			c.Publish(changed)
			want := !slices.Contains(ignored, name) && field.Tag.Get("json") != "-"
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
	case *model.FolderID:
		v.Inode++
	case *ident.Digest:
		*v = digestOf(ident.SHA256, "another")
	case *model.Declaration:
		v.File += "x"
	case *model.Signature:
		v.Signer += "x"
	case *time.Time:
		*v = time.Unix(1_800_000_000, 0).UTC()
	case **model.Failure:
		*v = &model.Failure{Op: model.Sync}
	case **model.Need:
		*v = &model.Need{By: "x"}
	case *model.Reason:
		v.Code += "x"
	case *ident.DiskRef:
		v.Disk += "x"
	case *[]ident.CopyRef:
		*v = []ident.CopyRef{{}}
	case *[]model.Condition:
		*v = []model.Condition{{Kind: "not-ready"}}
	case *[]string:
		*v = []string{"x"}
	case *map[string]model.Disk, *model.Copies, *map[ident.ID]model.Need:
		f.SetZero()
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
		changeCopy(s, imageID(0), func(c *model.Copy) { c.PartBytes = bytes })
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
	now := time.Now().Round(0)
	changeCopy(s, imageID(0), func(c *model.Copy) { c.VerifiedAt = now })
	c.Publish(s)
	after, again := c.latest()
	s = clone(s)
	changeCopy(s, imageID(0), func(c *model.Copy) { c.VerifiedAt = now.In(time.FixedZone("", 3600)) })
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
	other.ConfigDigest = "decade"
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
