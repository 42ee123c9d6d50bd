package report

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// planOf returns a plan with these actions and the same summary as package plan.
func planOf(actions ...plan.Action) plan.Plan {
	p := plan.Plan{Actions: actions, Summary: plan.Summary{Counts: map[model.Op]int{}}}
	for _, a := range actions {
		p.Summary.Counts[a.Op]++
		switch {
		case a.Op == model.Cleanup || a.Op == model.Evict:
			p.Summary.FreedBytes += a.Bytes
		case a.Bytes == plan.UnknownBytes:
			p.Summary.UnknownSizes++
		case a.Op == model.Download || a.Op == model.Sync:
			p.Summary.TransferBytes += a.Bytes
		}
	}
	return p
}

func action(kind model.Op, image, uuid, on string, bytes int64, reason string) plan.Action {
	node, disk, _ := strings.Cut(on, "/")
	return plan.Action{Op: kind, Image: image, UUID: uuid, Node: node, Disk: disk, Bytes: bytes, Reason: model.Reason{Code: plan.CodeNoCopy, Text: reason}}
}

// keptAction is the action for a generation that keepGenerations keeps.
var keptAction = plan.Action{
	Op: model.Wait, Image: "a1", UUID: "00000001", Node: "node1", Disk: "disk1",
	Reason: model.Reason{Code: plan.CodeGenerationKept, Text: "older generation; kept"},
}

var plans = []struct {
	name           string
	plan           plan.Plan
	text, markdown string
}{
	{
		name:     "nothing",
		plan:     planOf(),
		text:     "No changes. The disks match the configuration.\n",
		markdown: "**No changes. The disks match the configuration.**\n",
	},
	{
		name: "sizes known",
		plan: planOf(
			action(model.Download, "parrot", "6846a0b2", "node1/disk1", 1<<30, "no copy on this disk"),
			func() plan.Action {
				a := action(model.Sync, "parrot", "6846a0b2", "node1/disk2", 512<<20, "resumes at 512 MiB")
				a.From = ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
				return a
			}()),
		text: `  download  parrot  disk1  1.0 GiB  no copy on this disk
  sync      parrot  disk2  512 MiB  resumes at 512 MiB; from node1/disk1/parrot-6846a0b2

Plan: 1 to fetch, 1 to sync, 0 to clean up; 1.5 GiB to transfer.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| download | parrot | disk1 | 1.0 GiB | no copy on this disk |
| sync | parrot | disk2 | 512 MiB | resumes at 512 MiB; from node1/disk1/parrot-6846a0b2 |

**Plan: 1 to fetch, 1 to sync, 0 to clean up; 1.5 GiB to transfer.**
`,
	},
	{
		name: "by an index",
		plan: planOf(
			func() plan.Action {
				a := action(model.Download, "kea", "6846a0b2", "node1/disk1", 43<<20, "no copy on this disk")
				a.Size = 4 << 30
				return a
			}(),
			func() plan.Action {
				a := action(model.Download, "lory", "6846a0b3", "node1/disk1", 0, "resumes at 4.0 GiB")
				a.Size = 4 << 30
				return a
			}(),
			func() plan.Action {
				a := action(model.Download, "parrot", "6846a0b4", "node1/disk1", plan.UnknownBytes, "no copy on this disk")
				a.Size = 4 << 30
				return a
			}()),
		text: `  download  kea     disk1  43 MiB of 4.0 GiB by index        no copy on this disk
  download  lory    disk1  0 B of 4.0 GiB by index           resumes at 4.0 GiB
  download  parrot  disk1  unknown part of 4.0 GiB by index  no copy on this disk

Plan: 3 to fetch, 0 to sync, 0 to clean up; at least 43 MiB to transfer.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| download | kea | disk1 | 43 MiB of 4.0 GiB by index | no copy on this disk |
| download | lory | disk1 | 0 B of 4.0 GiB by index | resumes at 4.0 GiB |
| download | parrot | disk1 | unknown part of 4.0 GiB by index | no copy on this disk |

**Plan: 3 to fetch, 0 to sync, 0 to clean up; at least 43 MiB to transfer.**
`,
	},
	{
		name: "of every kind",
		plan: planOf(
			action(model.Adopt, "a1", "00000001", "node1/disk1", 1<<20, "a file is there"),
			action(model.Blocked, "b1", "00000002", "node1/", 0, "no disk\nmatches | the_selectors"),
			action(model.Download, "c1", "00000003", "node1/disk1", 3<<20, "new"),
			action(model.Cleanup, "c1", "00000004", "node1/disk1", 5<<20, "older generation"),
			action(model.Download, "d1", "00000005", "node2/disk1", plan.UnknownBytes, "new"),
			action(model.Evict, "e1", "00000006", "node1/disk1", 1<<20, "eviction is requested"),
			action(model.Verify, "f1", "00000007", "node1/disk1", 1<<20, "mtime"),
			func() plan.Action {
				a := action(model.Repair, "f2", "00000009", "node1/disk1", 1<<20, "damaged")
				a.From = ident.CopyRef{Disk: ident.DiskRef{Node: "node2", Disk: "disk1"}, ID: ident.ID{Name: "f2", UUID: "00000009"}}
				return a
			}(),
			func() plan.Action {
				a := action(model.Wait, "g1", "00000008", "node1/disk1", 0, "surplus copy")
				a.Until = time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC)
				return a
			}()),
		text: `  adopt     a1           node1/disk1  1.0 MiB  a file is there
  blocked   b1           -            -        no disk; matches | the_selectors
  download  c1-00000003  node1/disk1  3.0 MiB  new
  cleanup   c1-00000004  node1/disk1  5.0 MiB  older generation
  download  d1           node2/disk1  unknown  new
  evict     e1           node1/disk1  1.0 MiB  eviction is requested
  verify    f1           node1/disk1  1.0 MiB  mtime
  repair    f2           node1/disk1  1.0 MiB  damaged; from node2/disk1/f2-00000009
  wait      g1           node1/disk1  -        surplus copy; until 2026-11-20 12:30:00 UTC

Plan: 2 to fetch, 0 to sync, 1 to clean up, 1 to adopt, 1 to verify, 1 to repair, 1 to evict, 1 waiting, 1 blocked; at least 3.0 MiB to transfer, 6.0 MiB to free.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| adopt | a1 | node1/disk1 | 1.0 MiB | a file is there |
| blocked | b1 | - | - | no disk; matches \| the\_selectors |
| download | c1-00000003 | node1/disk1 | 3.0 MiB | new |
| cleanup | c1-00000004 | node1/disk1 | 5.0 MiB | older generation |
| download | d1 | node2/disk1 | unknown | new |
| evict | e1 | node1/disk1 | 1.0 MiB | eviction is requested |
| verify | f1 | node1/disk1 | 1.0 MiB | mtime |
| repair | f2 | node1/disk1 | 1.0 MiB | damaged; from node2/disk1/f2-00000009 |
| wait | g1 | node1/disk1 | - | surplus copy; until 2026-11-20 12:30:00 UTC |

**Plan: 2 to fetch, 0 to sync, 1 to clean up, 1 to adopt, 1 to verify, 1 to repair, 1 to evict, 1 waiting, 1 blocked; at least 3.0 MiB to transfer, 6.0 MiB to free.**
`,
	},
	{
		name: "only waits",
		plan: planOf(action(model.Wait, "a1", "00000001", "node1/disk1", 0, "surplus copy")),
		text: `  wait  a1  disk1  -  surplus copy

No changes now: 1 waiting.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| wait | a1 | disk1 | - | surplus copy |

**No changes now: 1 waiting.**
`,
	},
	{
		name: "only kept generations",
		plan: planOf(keptAction),
		text: `  wait  a1  disk1  -  older generation; kept

No changes. The disks match the configuration.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| wait | a1 | disk1 | - | older generation; kept |

**No changes. The disks match the configuration.**
`,
	},
	{
		name: "waits and kept generations",
		plan: planOf(keptAction, action(model.Wait, "a2", "00000001", "node1/disk1", 0, "surplus copy")),
		text: `  wait  a1  disk1  -  older generation; kept
  wait  a2  disk1  -  surplus copy

No changes now: 1 waiting, 1 kept.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| wait | a1 | disk1 | - | older generation; kept |
| wait | a2 | disk1 | - | surplus copy |

**No changes now: 1 waiting, 1 kept.**
`,
	},
	{
		name: "no size known",
		plan: planOf(action(model.Download, "a1", "00000001", "node1/disk1", plan.UnknownBytes, "new")),
		text: `  download  a1  disk1  unknown  new

Plan: 1 to fetch, 0 to sync, 0 to clean up; an unknown amount to transfer.
`,
		markdown: `| op | image | disk | size | reason |
|---|---|---|---:|---|
| download | a1 | disk1 | unknown | new |

**Plan: 1 to fetch, 0 to sync, 0 to clean up; an unknown amount to transfer.**
`,
	},
}

// planText returns a plan in the formats Text and Markdown.
func planText(t *testing.T, p plan.Plan, style Style) string {
	t.Helper()
	var b strings.Builder
	if err := WritePlan(&b, p, style); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPlanAsTextAndMarkdown(t *testing.T) {
	for _, c := range plans {
		if got := planText(t, c.plan, Style{Colour: false, Cluster: false}); got != c.text {
			t.Errorf("%s: text is\n%s\nwant\n%s", c.name, got, c.text)
		}
		if got := planText(t, c.plan, Style{Format: Markdown}); got != c.markdown {
			t.Errorf("%s: markdown is\n%s\nwant\n%s", c.name, got, c.markdown)
		}
	}
}

func TestColoursDoNotChangeTheText(t *testing.T) {
	for _, c := range plans {
		got := planText(t, c.plan, Style{Colour: true, Cluster: false})
		for _, code := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"} {
			got = strings.ReplaceAll(got, code, "")
		}
		if got != c.text {
			t.Errorf("%s: without its colours the text is\n%s\nwant\n%s", c.name, got, c.text)
		}
	}
}

func TestPlanOfAClusterShowsTheNode(t *testing.T) {
	p := planOf(action(model.Cleanup, "parrot", "6846a0b2", "node2/disk1", 1<<20, "surplus copy"))
	if got := planText(t, p, Style{Colour: false, Cluster: true}); !strings.HasPrefix(got, "  cleanup  parrot  node2/disk1  1.0 MiB  surplus copy\n") {
		t.Errorf("the plan is\n%s", got)
	}
	if got := planText(t, p, Style{Format: Markdown, Cluster: true}); !strings.Contains(got, "| cleanup | parrot | node2/disk1 |") {
		t.Errorf("the plan is\n%s", got)
	}
}
