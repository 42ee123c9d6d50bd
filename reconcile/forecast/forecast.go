package forecast

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// builder computes a Fleet.
type builder struct {
	desired  plan.Desired
	observed plan.Observed
	fleet    Fleet
	images   map[ident.ID]*ImageForecast
	disks    map[ident.DiskRef]*DiskForecast
	copies   map[ident.CopyRef]*CopyForecast
	sizes    map[ident.ID]model.Copy // the largest ready copy of each generation, or the sizes from its index
	blocked  map[string][]string     // by reason
	deferred map[string][]string     // by reason
}

// build returns the forecast for a plan, without the field State. The desired state d and the
// observed state o are those of a node without disks.
func build(d plan.Desired, o plan.Observed, p plan.Plan) Fleet {
	f := &builder{
		desired: d, observed: o, images: map[ident.ID]*ImageForecast{}, disks: map[ident.DiskRef]*DiskForecast{}, copies: map[ident.CopyRef]*CopyForecast{},
		sizes: map[ident.ID]model.Copy{}, blocked: map[string][]string{}, deferred: map[string][]string{},
	}
	f.addCurrent()
	for _, a := range p.Actions {
		if _, known := f.sizes[a.CopyRef().ID]; !known && a.Size > 0 {
			f.sizes[a.CopyRef().ID] = model.Copy{Size: a.Size, RealSize: a.Data}
		}
	}
	var last []plan.Action
	for _, a := range p.Actions {
		if op, follows := a.Eventually(); follows && op.Deletes() && a.Idle() && a.Until.IsZero() {
			last = append(last, a) // it waits for other copies: their actions come first
			continue
		}
		f.addAction(a)
	}
	for _, a := range last {
		a.Stuck = !f.enoughAfter(a.CopyRef())
		f.addAction(a)
	}
	f.fleet.Risk.LosesAll, f.fleet.Risk.BelowReserve, f.fleet.Risk.BelowCopies = []string{}, []string{}, []Shortfall{}
	f.endImages()
	f.endDisks()
	f.fleet.Deferred, f.fleet.Blocked = groupReasons(f.deferred), groupReasons(f.blocked)
	return f.fleet
}

// addCurrent adds the current state.
func (f *builder) addCurrent() {
	for id, p := range plan.NewRound(f.desired, f.observed).Placements() {
		f.image(id).Desired = p.Desired()
	}
	for ref, seen := range f.observed.Disks {
		for id, c := range seen.Copies {
			if c.State == model.Pending && c.PartBytes == 0 || seen.Problem != "" {
				continue
			}
			key, one := ident.CopyRef{Disk: ref, ID: id}, f.image(id)
			f.copy(key).State = c.State
			if c.State == model.Ready {
				one.Ready++
				one.After++
				if largest, known := f.sizes[id]; !known || cmp.Or(cmp.Compare(c.RealSize, largest.RealSize), cmp.Compare(c.Size, largest.Size)) > 0 {
					f.sizes[id] = c
				}
			}
		}
	}
	for node, declared := range f.desired.Config.Nodes {
		for name, one := range declared.Disks {
			ref := ident.DiskRef{Node: node, Disk: name}
			seen, known := f.observed.Disks[ref]
			f.disks[ref] = &DiskForecast{
				Node: node, Disk: name, Known: known, Problem: seen.Problem, Total: seen.Space.Total, Reserved: one.StorageReserved,
				FreeBefore: seen.Space.Free, FreeLowest: seen.Space.Free, FreeAfter: seen.Space.Free,
			}
		}
	}
}

// image returns the forecast of a generation. If there is none yet, image adds it.
func (f *builder) image(id ident.ID) *ImageForecast {
	one := f.images[id]
	if one == nil {
		declared, ok := f.desired.Config.Images[id.Name]
		one = &ImageForecast{Image: id.Name, UUID: id.UUID, Declared: ok && declared.ID == id, Copies: []CopyForecast{}}
		f.images[id] = one
	}
	return one
}

// copy returns the forecast of a copy. If there is none yet, copy adds it.
func (f *builder) copy(key ident.CopyRef) *CopyForecast {
	one := f.copies[key]
	if one == nil {
		one = &CopyForecast{Node: key.Disk.Node, Disk: key.Disk.Disk}
		f.copies[key] = one
	}
	return one
}

// addAction adds the effect of one action.
func (f *builder) addAction(a plan.Action) {
	key := a.CopyRef()
	op, follows := a.Eventually()
	what := key.String()
	if a.Disk == "" {
		what = a.Image
	}
	switch {
	case a.Op == model.Blocked:
		f.blocked[a.Text] = append(f.blocked[a.Text], what)
		f.fleet.Risk.Blocked++
	case a.Stuck && a.Next.Deletes():
		f.deferred[a.Text] = append(f.deferred[a.Text], what)
		f.fleet.Risk.Deferred++
	}
	if !follows {
		return
	}
	one := f.copy(key)
	one.Op, one.Later = op, a.Idle()
	switch {
	case op.CreatesCopy():
		f.transferStats(a, op).add(f.transferBytes(a))
		f.addCreation(key, a)
	case op.Deletes():
		f.addDeletion(key, op, a.Idle())
	case op == model.Backup:
		f.fleet.Traffic.Backups.add(a.Bytes)
	case one.State != model.Ready && f.desired.Config.Images[key.ID.Name].ID == key.ID:
		f.image(key.ID).After++ // adopt, verify and repair make the existing copy ready
	}
}

// enoughAfter reports whether enough copies of the image will be ready without the copy that key names.
func (f *builder) enoughAfter(key ident.CopyRef) bool {
	image, declared := f.desired.Config.Images[key.ID.Name]
	if !declared {
		return true
	}
	one := f.image(image.ID)
	after := one.After
	if c := f.observed.Disks[key.Disk].Copies[key.ID]; key.ID == image.ID && c.State == model.Ready {
		after--
	}
	return after >= one.Desired
}

// transferStats returns the statistics for a new copy, by where its bytes come from.
func (f *builder) transferStats(a plan.Action, op model.Op) *TransferStats {
	switch {
	case op.IsFirstCopy() && op != model.Clone:
		return &f.fleet.Traffic.Upstreams
	case op == model.Clone, a.From.Disk.Node == a.Node:
		return &f.fleet.Traffic.Local
	}
	return &f.fleet.Traffic.Peers
}

// transferBytes returns how many bytes an action transfers, or plan.UnknownBytes.
func (f *builder) transferBytes(a plan.Action) int64 {
	c, known := f.sizes[a.CopyRef().ID]
	switch {
	case !a.Idle():
		return a.Bytes
	case known:
		return c.Size
	}
	return plan.UnknownBytes
}

// addCreation adds a new copy. A partial file of it may exist.
func (f *builder) addCreation(key ident.CopyRef, a plan.Action) {
	source, known := f.sizes[key.ID]
	if c, exists := f.observed.Disks[a.From.Disk].Copies[a.From.ID]; exists {
		source, known = c, true
	}
	c := f.observed.Disks[key.Disk].Copies[key.ID]
	if d := f.disks[key.Disk]; d != nil && known {
		d.Created += plan.RemainingBytes(c, source.RealSize)
	} else if d != nil {
		d.CreatedUnknown++
	}
	f.image(key.ID).After++
}

// addDeletion adds a deletion.
func (f *builder) addDeletion(key ident.CopyRef, op model.Op, later bool) {
	c := f.observed.Disks[key.Disk].Copies[key.ID]
	if d := f.disks[key.Disk]; d != nil {
		d.Deleted += c.RealSize
	}
	if c.State == model.Ready {
		f.image(key.ID).After--
	}
	switch {
	case op == model.Evict:
		f.fleet.Risk.Evicts.add(c.RealSize)
	case later:
		f.fleet.Risk.RemovesLater.add(c.RealSize)
	default:
		f.fleet.Risk.Removes.add(c.RealSize)
	}
}

// endImages completes the images, and the risks for them.
func (f *builder) endImages() {
	for key, c := range f.copies {
		one := f.image(key.ID)
		one.Copies = append(one.Copies, *c)
	}
	readyAfter := map[string]int{} // ready copies of any generation, by name
	for _, one := range f.images {
		readyAfter[one.Image] += one.After
	}
	f.fleet.Images = []ImageForecast{}
	for _, id := range slices.SortedFunc(maps.Keys(f.images), ident.ID.Compare) {
		one := *f.images[id]
		slices.SortFunc(one.Copies, func(a, b CopyForecast) int {
			return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk))
		})
		f.fleet.Images = append(f.fleet.Images, one)
		if one.Ready > 0 && readyAfter[one.Image] == 0 {
			f.fleet.Risk.LosesAll = append(f.fleet.Risk.LosesAll, one.Image)
		}
		if one.Declared && one.After < one.Desired {
			f.fleet.Risk.BelowCopies = append(f.fleet.Risk.BelowCopies, Shortfall{one.Image, one.Desired, one.After})
		}
	}
	f.fleet.Risk.LosesAll = slices.Compact(f.fleet.Risk.LosesAll)
}

// endDisks completes the disks, and the risks for them.
func (f *builder) endDisks() {
	f.fleet.Disks = []DiskForecast{}
	for _, ref := range slices.SortedFunc(maps.Keys(f.disks), ident.DiskRef.Compare) {
		one := f.disks[ref]
		one.FreeLowest, one.FreeAfter = one.FreeBefore-one.Created, one.FreeBefore-one.Created+one.Deleted
		one.BelowReserve = one.Known && one.Problem == "" && one.Created > 0 && one.FreeLowest < one.Reserved
		if one.BelowReserve {
			f.fleet.Risk.BelowReserve = append(f.fleet.Risk.BelowReserve, ref.String())
		}
		f.fleet.Disks = append(f.fleet.Disks, *one)
	}
}

// groupReasons returns the groups, the largest first.
func groupReasons(by map[string][]string) []ReasonGroup {
	list := []ReasonGroup{}
	for why, copies := range by {
		slices.Sort(copies)
		list = append(list, ReasonGroup{why, copies})
	}
	slices.SortFunc(list, func(a, b ReasonGroup) int {
		return cmp.Or(cmp.Compare(len(b.Copies), len(a.Copies)), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}
