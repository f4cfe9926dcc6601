package domain

// Inventory is the step that holds stock for the items of the charge.
const Inventory = "inventory"

var inventory = Step{
	Name: Inventory,
	Events: []EventType{
		{Name: "inventory.reserved.v1", Zero: InventoryReserved{}},
		{Name: "inventory.rejected.v1", Zero: InventoryRejected{}},
		{Name: "inventory.released.v1", Zero: InventoryReleased{}},
	},
	applies: func(e ChargeRequested) bool { return len(e.Items) > 0 },
	release: func(c Charge) Event { return InventoryReleased{Items: c.Items} },
}

// The reasons for which the step fails.
const (
	OutOfStock FailureCode = "out_of_stock"
	UnknownSKU FailureCode = "unknown_sku"
)

// InventoryReserved says that stock is held for the charge.
type InventoryReserved struct {
	Items []Item `json:"items" detail:"items"`
}

func (InventoryReserved) apply(c *Charge)         { c.setStep(Inventory, StepDone) }
func (InventoryReserved) allowedIn(c Charge) bool { return c.due(Inventory) }

// InventoryRejected says that there was not enough stock; the charge fails with it.
type InventoryRejected struct {
	Code FailureCode `json:"code" detail:"code"`
}

func (InventoryRejected) apply(c *Charge) { c.setStep(Inventory, StepFailed) }
func (e InventoryRejected) allowedIn(c Charge) bool {
	return c.due(Inventory) && !e.Code.cancels()
}

// InventoryReleased returns the held stock: the compensation.
type InventoryReleased struct {
	Items []Item `json:"items" detail:"items"`
}

func (InventoryReleased) apply(c *Charge)         { c.setStep(Inventory, StepCompensated) }
func (InventoryReleased) allowedIn(c Charge) bool { return c.mayRelease(Inventory) }

// RejectInventory returns the events that fail the charge for lack of stock; none if it has failed.
func (c Charge) RejectInventory(code FailureCode) []Event {
	message := "an item of the order is out of stock"
	if code == UnknownSKU {
		message = "an item of the order is not an article of the merchant"
	}
	return c.endFailed(Failure{Code: code, Message: message}, InventoryRejected{code})
}
